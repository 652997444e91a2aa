package netpolapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	netpol "sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/policy"
)

// judge is a cluster whose pods exist as far as policies see them.
type judge struct {
	client          client.Client
	allowed, denied atomic.Int64
	pods            int // that were made
}

// create makes the pods of a StatefulSet with it, as its controller would.
func (j *judge) create(ctx context.Context, c client.WithWatch, o client.Object,
	opts ...client.CreateOption) error {
	u, ok := o.(*unstructured.Unstructured)
	if !ok || u.GetKind() != "StatefulSet" {
		return c.Create(ctx, o, opts...)
	}
	var set appsv1.StatefulSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &set); err != nil {
		return err
	}
	for i := range *set.Spec.Replicas {
		j.pods++
		pod := corev1.Pod{Spec: set.Spec.Template.Spec}
		pod.Namespace, pod.Name = set.Namespace, fmt.Sprintf("%s-%d", set.Name, i)
		pod.Labels = maps.Clone(set.Spec.Template.Labels)
		pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
		pod.Status.PodIP = fmt.Sprintf("10.1.0.%d", j.pods)
		if pod.Spec.HostNetwork {
			pod.Status.PodIP = fmt.Sprintf("192.0.2.%d", j.pods)
		}
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		if err := c.Create(ctx, &pod); err != nil {
			return err
		}
	}
	ready := int64(*set.Spec.Replicas)
	if err := unstructured.SetNestedField(u.Object, ready, "status", "readyReplicas"); err != nil {
		return err
	}
	return c.Create(ctx, u, opts...)
}

// cluster is what policies are compiled for.
type cluster struct {
	table *policy.Table
	peers map[netip.Addr]policy.Peer
	// keys name the pods that policies are about, by address.
	keys map[netip.Addr]string
	// addresses are all pods', by key.
	addresses map[string]netip.Addr
}

// compile reads all objects, and has internal/policy compile them.
func (j *judge) compile(ctx context.Context) (*cluster, error) {
	var in policy.Input
	if err := errors.Join(j.namespaces(ctx, &in), j.policies(ctx, &in)); err != nil {
		return nil, err
	}
	out := &cluster{peers: map[netip.Addr]policy.Peer{}, keys: map[netip.Addr]string{},
		addresses: map[string]netip.Addr{}}
	var pods corev1.PodList
	if err := j.client.List(ctx, &pods); err != nil {
		return nil, err
	}
	numbers := map[string]uint32{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		address, err := netip.ParseAddr(pod.Status.PodIP)
		if err != nil {
			return nil, err
		}
		key := pod.Namespace + "/" + pod.Name
		out.addresses[key] = address
		if pod.Spec.HostNetwork {
			out.peers[address] = policy.Peer{Identity: v1alpha1.IdentityRemoteHost,
				Address: address}
			continue
		}
		who := pod.Namespace + fmt.Sprint(pod.Labels)
		if numbers[who] == 0 {
			numbers[who] = v1alpha1.MinIdentity + uint32(len(numbers))
			in.Identities = append(in.Identities, policy.Identity{Number: numbers[who],
				Namespace: pod.Namespace, Labels: pod.Labels})
		}
		out.keys[address] = key
		out.peers[address] = policy.Peer{Identity: numbers[who], Address: address}
		in.Endpoints = append(in.Endpoints, policy.Endpoint{Namespace: pod.Namespace,
			Name: pod.Name, Labels: pod.Labels, Identity: numbers[who], Local: true,
			Addresses: []netip.Addr{address}, Ports: ports(pod)})
	}
	out.table = policy.NewTable(policy.NewCompiler(policy.Options{}).Compile(in))
	return out, nil
}

func (j *judge) namespaces(ctx context.Context, in *policy.Input) error {
	var list corev1.NamespaceList
	if err := j.client.List(ctx, &list); err != nil {
		return err
	}
	in.Namespaces = map[string]map[string]string{}
	for _, ns := range list.Items {
		in.Namespaces[ns.Name] = ns.Labels
	}
	return nil
}

// policies reads them as a file is read: that is how an administrator's own are.
func (j *judge) policies(ctx context.Context, in *policy.Input) error {
	var network networkingv1.NetworkPolicyList
	var clusters netpol.ClusterNetworkPolicyList
	if err := errors.Join(j.client.List(ctx, &network), j.client.List(ctx, &clusters)); err != nil {
		return err
	}
	var list []any
	for i := range network.Items {
		o := &network.Items[i]
		o.SetGroupVersionKind(networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"))
		list = append(list, o)
	}
	for i := range clusters.Items {
		o := &clusters.Items[i]
		o.SetGroupVersionKind(netpol.SchemeGroupVersion.WithKind("ClusterNetworkPolicy"))
		list = append(list, o)
	}
	for _, o := range list {
		text, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		objects, problems := policy.Decode("conformance", text)
		for _, p := range objects.Policies {
			problems = append(problems, p.Problems...)
		}
		if len(problems) > 0 {
			return fmt.Errorf("%w in:\n%s", problems[0], text)
		}
		in.Policies = append(in.Policies, objects.Policies...)
	}
	return nil
}

var protocols = map[string]uint8{"tcp": policy.TCP, "udp": policy.UDP, "sctp": policy.SCTP}

func ports(pod *corev1.Pod) (out []policy.ContainerPort) {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			out = append(out, policy.ContainerPort{Name: p.Name,
				Protocol: protocols[strings.ToLower(string(p.Protocol))],
				Number:   uint16(p.ContainerPort)})
		}
	}
	return out
}

// connect says whether a pod's connection is allowed, by the sets of whichever ends policies are
// about.
func (c *cluster) connect(from string, to netip.AddrPort, protocol uint8) bool {
	source := c.addresses[from]
	allowed := true
	for _, end := range []struct {
		own, other netip.Addr
		direction  policy.Direction
	}{{source, to.Addr(), policy.Egress}, {to.Addr(), source, policy.Ingress}} {
		key, policed := c.keys[end.own]
		if !policed {
			continue
		}
		peer, known := c.peers[end.other]
		if !known {
			peer = policy.Peer{Identity: v1alpha1.IdentityWorld, Address: end.other}
		}
		d := c.table.Decide(key, end.direction, peer, protocol, to.Port())
		allowed = allowed && d.Verdict == policy.Allow
	}
	return allowed
}

// ServeHTTP answers what the tests run in pods: agnhost connect --timeout=T --protocol=P ADDRESS.
func (j *judge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.Split(r.URL.Path, "/") // /api/v1/namespaces/NS/pods/POD/exec
	command := r.URL.Query()["command"]
	if len(path) != 8 || path[7] != "exec" || len(command) != 5 || command[1] != "connect" {
		http.Error(w, "only pods' exec of agnhost connect is known here", http.StatusNotFound)
		return
	}
	to, err := netip.ParseAddrPort(command[4])
	protocol := protocols[strings.TrimPrefix(command[3], "--protocol=")]
	if err != nil || protocol == 0 {
		http.Error(w, "what to connect to: "+strconv.Quote(command[4]), http.StatusBadRequest)
		return
	}
	c, err := j.compile(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer := ""
	if c.connect(path[4]+"/"+path[6], to, protocol) {
		j.allowed.Add(1)
	} else {
		j.denied.Add(1)
		answer = "TIMEOUT\n"
	}
	serveExec(w, r, answer)
}
