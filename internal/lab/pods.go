package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"weft.dev/weft/internal/netns"
)

// addTimeout bounds one CNI ADD.
const addTimeout = time.Minute

// AddPod adds a pod to a running lab: declares it, makes its namespace, attaches it by CNI.
func (l *Lab) AddPod(ctx context.Context, spec PodSpec) (*Pod, error) {
	pods, err := l.AddPods(ctx, []PodSpec{spec})
	if err != nil {
		return nil, err
	}
	return pods[0], nil
}

// AddPods adds pods, declaring all of them first. After an error, pods that were not
// attached are gone again and the others stay.
func (l *Lab) AddPods(ctx context.Context, specs []PodSpec) ([]*Pod, error) {
	specs = slices.Clone(specs)
	err := l.st.update(func(st *state) error {
		grown := st.spec.clone()
		for i := range specs {
			specs[i].setDefaults()
			grown.Pods = append(grown.Pods, specs[i])
		}
		if err := validate(grown, "", nil); err != nil {
			return fmt.Errorf("add pod: %w", err)
		}
		for _, p := range specs {
			if exists(netns.Path(podNS(grown.Name, p.Node, p.Name))) {
				return fmt.Errorf("add pod: network namespace %s is taken by something else",
					podNS(grown.Name, p.Node, p.Name))
			}
		}
		st.spec = grown
		return writePodObjects(grown)
	})
	if err != nil {
		return nil, err
	}
	var out []*Pod
	for i, p := range specs {
		if err := l.attachPod(ctx, p); err != nil {
			return out, errors.Join(err, l.forget(context.WithoutCancel(ctx), specs[i:]))
		}
		out = append(out, l.Pod(p.Name))
	}
	l.awaitIdentities(ctx)
	return out, nil
}

// forget undoes pods that could not be added.
func (l *Lab) forget(ctx context.Context, specs []PodSpec) error {
	var errs []error
	for _, p := range specs {
		errs = append(errs, l.DelPod(ctx, p.Name))
	}
	return errors.Join(errs...)
}

// DelPod removes a pod: CNI DEL, its namespace, its declaration.
func (l *Lab) DelPod(ctx context.Context, name string) error {
	st, err := l.st.read()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(st.spec.Pods, func(p PodSpec) bool { return p.Name == name })
	if i < 0 {
		return fmt.Errorf("no pod %q in lab %s", name, l.Name())
	}
	p := st.spec.Pods[i]
	if err := l.detachPod(ctx, st, p); err != nil {
		return err
	}
	if err := netns.Delete(podNS(st.spec.Name, p.Node, p.Name)); err != nil {
		return err
	}
	return l.st.update(func(st *state) error {
		delete(st.Pods, name)
		st.spec = st.spec.clone()
		st.spec.Pods = slices.DeleteFunc(st.spec.Pods,
			func(p PodSpec) bool { return p.Name == name })
		return writePodObjects(st.spec)
	})
}

func (l *Lab) attachPods(ctx context.Context, s *Spec) error {
	for _, p := range s.Pods {
		if err := l.attachPod(ctx, p); err != nil {
			return err
		}
	}
	l.awaitIdentities(ctx)
	return nil
}

// attachPod makes a declared pod's namespace and attaches it.
func (l *Lab) attachPod(ctx context.Context, p PodSpec) error {
	st, err := l.st.read()
	if err != nil {
		return err
	}
	path, err := netns.Create(podNS(st.spec.Name, p.Node, p.Name))
	if err != nil {
		return err
	}
	err = netns.Do(path, func() error {
		if err := SetSysctls(st.spec.Sysctls); err != nil {
			return err
		}
		return linkUp("lo")
	})
	if err != nil {
		return fmt.Errorf("pod %s: %w", p.Key(), err)
	}
	node := st.spec.node(p.Node)
	start := time.Now()
	var record podRecord
	if node.Bare() {
		record, err = attachPlain(st, p)
	} else {
		record, err = l.cniAdd(ctx, st, p)
	}
	if err != nil {
		return fmt.Errorf("attach pod %s on node %s: %w", p.Key(), p.Node, err)
	}
	l.log().Info("pod attached", "pod", p.Key(), "node", p.Node, "ipv4", record.IPv4, "ipv6",
		record.IPv6,
		"took", time.Since(start).Round(time.Millisecond))
	return l.st.update(func(st *state) error { st.Pods[p.Name] = record; return nil })
}

// pluginOutput puts what the plugin says beside its result into the lab's log.
type pluginOutput struct{ l *Lab }

func (o pluginOutput) Write(text []byte) (int, error) {
	o.l.log().Debug("CNI plugin", "says", strings.TrimSpace(string(text)))
	return len(text), nil
}

// cni prepares a call of the plugin as a container runtime would make it.
func (l *Lab) cni(s *Spec,
	p PodSpec) (*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf, error) {
	conf, err := json.Marshal(map[string]any{
		"cniVersion": cniVersion,
		"name":       "weft-" + s.Name,
		"plugins": []any{map[string]any{"type": cniPlugin,
			"instance": instance(s.Name, p.Node)}},
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("write CNI configuration: %w", err)
	}
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	id := containerID(s.Name, p.Node, p.Name)
	rt := &libcni.RuntimeConf{
		ContainerID: id, NetNS: netns.Path(podNS(s.Name, p.Node, p.Name)), IfName: PodIfName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", id},
		},
	}
	run := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: pluginOutput{l}}}
	return libcni.NewCNIConfigWithCacheDir([]string{binDir(s.Name)}, cniCacheDir(s.Name, p.Node),
		run), list, rt, nil
}

// cniAdd runs the plugin inside the node's network namespace, where a runtime runs it.
// libcni starts it from the calling thread, which Do has moved there.
func (l *Lab) cniAdd(ctx context.Context, st *state, p PodSpec) (podRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	plugin, list, rt, err := l.cni(st.spec, p)
	if err != nil {
		return podRecord{}, err
	}
	var result *types100.Result
	err = netns.Do(netns.Path(nodeNS(st.spec.Name, p.Node)), func() error {
		r, err := plugin.AddNetworkList(ctx, list, rt)
		if err != nil {
			return fmt.Errorf("CNI ADD: %w", err)
		}
		result, err = types100.GetResult(r)
		return err
	})
	if err != nil {
		return podRecord{}, err
	}
	return readResult(result, rt.NetNS, p)
}

// readResult takes what the lab wants from a CNI result and holds it against what was asked for.
func readResult(result *types100.Result, sandbox string, p PodSpec) (podRecord, error) {
	var r podRecord
	for _, i := range result.Interfaces {
		if i.Sandbox == sandbox && i.Name == PodIfName {
			r.MAC = i.Mac
		} else if i.Sandbox == "" && r.HostIf == "" {
			r.HostIf = i.Name
		}
	}
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			continue
		}
		if addr = addr.Unmap(); addr.Is4() {
			r.IPv4 = addr
		} else {
			r.IPv6 = addr
		}
	}
	if !r.IPv4.IsValid() && !r.IPv6.IsValid() {
		return r, errors.New("the CNI result has no address")
	}
	for _, want := range p.Addresses {
		if want != r.IPv4 && want != r.IPv6 {
			return r, fmt.Errorf("asked for address %s and got %s %s", want, r.IPv4, r.IPv6)
		}
	}
	return r, nil
}

// detachPod runs CNI DEL. It is no error when the pod was never attached.
func (l *Lab) detachPod(ctx context.Context, st *state, p PodSpec) error {
	nodePath := netns.Path(nodeNS(st.spec.Name, p.Node))
	if st.spec.node(p.Node).Bare() || !exists(nodePath) || !exists(binDir(st.spec.Name)) {
		return nil // a bare node's veth goes with the pod's namespace
	}
	_, answered := st.Pods[p.Name]
	if !answered && !exists(netns.Path(podNS(st.spec.Name, p.Node, p.Name))) {
		return nil // the plugin was never asked
	}
	ctx, cancel := context.WithTimeout(ctx, delTimeout)
	defer cancel()
	plugin, list, rt, err := l.cni(st.spec, p)
	if err != nil {
		return err
	}
	if !exists(rt.NetNS) {
		rt.NetNS = "" // the plugin must cope, as the specification says
	}
	err = netns.Do(nodePath, func() error { return plugin.DelNetworkList(ctx, list, rt) })
	if err != nil {
		return fmt.Errorf("CNI DEL of pod %s: %w", p.Key(), err)
	}
	return nil
}
