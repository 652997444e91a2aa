package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/keys/ca"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/test/k8s"
)

// containerdConfig is that of a node. Scores of the OOM killer are not lowered: that needs a
// capability that machines of tests may lack.
const containerdConfig = `version = 2
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + Image + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
`

// kubeletConfig is that of a node. Nothing is evicted: how full the disk of a machine of tests is
// says nothing about the node.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%",
  imagefs.available: "0%", imagefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
oomScoreAdj: 0
maxOpenFiles: 20000
volumePluginDir: /var/lib/kubelet/volumeplugins
staticPodPath: /etc/kubernetes/manifests
resolvConf: ""
`

// runtime starts a node's containerd and gives it the image.
func (c *Cluster) runtime(n *Node, archive string) {
	c.t.Helper()
	loopback, err := os.ReadFile(filepath.Join(c.dir, "loopback"))
	if err == nil {
		err = os.WriteFile(n.Path("/opt/cni/bin/loopback"), loopback, 0o755)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	n.Write("/etc/containerd/config.toml", containerdConfig)
	c.startContainerd(n)
	n.Run("ctr", "--namespace", "k8s.io", "images", "import", archive)
}

// startContainerd starts a node's containerd and waits until it listens: a kubelet ends where it
// does not.
func (c *Cluster) startContainerd(n *Node) {
	c.t.Helper()
	os.Remove(n.Path("/run/containerd/containerd.sock"))
	n.Start(Containerd, "containerd")
	c.Eventually("containerd of "+n.Name+" listens", func(context.Context) error {
		_, err := os.Stat(n.Path("/run/containerd/containerd.sock"))
		return err
	})
}

// kubelet starts a node's kubelet.
func (c *Cluster) kubelet(n *Node) {
	c.t.Helper()
	who := c.API.User(c.t, "system:node:"+n.Name, "system:nodes")
	n.Write("/etc/kubernetes/kubelet.kubeconfig", c.kubeconfig(who, "default"))
	n.Write("/etc/kubernetes/kubelet.yaml", kubeletConfig)
	for _, dir := range []string{"/etc/kubernetes/manifests", "/etc/cni/net.d"} {
		if err := os.MkdirAll(n.Path(dir), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	c.startKubelet(n)
}

func (c *Cluster) startKubelet(n *Node) {
	c.t.Helper()
	n.Start(Kubelet, k8s.Binary(c.t, "kubelet"), "--config", "/etc/kubernetes/kubelet.yaml",
		"--kubeconfig", "/etc/kubernetes/kubelet.kubeconfig", "--hostname-override", n.Name,
		"--node-ip", fmt.Sprintf("%s,%s", n.Addresses[0], n.Addresses[1]))
}

// StartProxy starts a node's kube-proxy. It leaves the size of the table of connections as it is,
// which is the machine's.
func (c *Cluster) StartProxy(n *Node) {
	c.t.Helper()
	n.Write("/etc/kubernetes/proxy.kubeconfig",
		c.kubeconfig(c.API.User(c.t, "system:kube-proxy"), "default"))
	n.Start("kube-proxy", k8s.Binary(c.t, "kube-proxy"),
		"--kubeconfig", "/etc/kubernetes/proxy.kubeconfig", "--hostname-override", n.Name,
		"--proxy-mode", "iptables", "--cluster-cidr", fmt.Sprintf("%s,%s", c.Pods[0], c.Pods[1]),
		"--conntrack-max-per-core", "0", "--conntrack-min", "0",
		"--conntrack-tcp-timeout-established", "0s", "--conntrack-tcp-timeout-close-wait", "0s")
}

// kubeconfig is the text of a kubeconfig.
func (c *Cluster) kubeconfig(who *rest.Config, namespace string) string {
	c.t.Helper()
	text, err := os.ReadFile(c.API.Kubeconfig(who, namespace))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// weft puts Weft on a node, as docs/kubernetes.md says: the program, a configuration, and a
// kubeconfig with a token that is bound to the Node.
func (c *Cluster) weft(n *Node) {
	c.t.Helper()
	o, err := c.API.Dynamic.Resource(Core("nodes")).Get(context.Background(), n.Name,
		metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	who := c.API.ServiceAccount(c.t, "weft-system", "weft-agent", map[string]any{"kind": "Node",
		"apiVersion": "v1", "name": n.Name, "uid": string(o.GetUID())})
	n.Write("/etc/weft/kubeconfig", c.kubeconfig(who, "weft-system"))
	n.Write("/etc/weft/agent.yaml", "node: "+n.Name+`
store:
  kubernetes:
    enabled: true
    kubeconfig: /etc/weft/kubeconfig
`)
}

// StartAgent starts a node's agent and waits until it is ready.
func (c *Cluster) StartAgent(n *Node) {
	c.t.Helper()
	c.launchAgent(n)
	c.AwaitAgent(n)
}

func (c *Cluster) launchAgent(n *Node) {
	c.t.Helper()
	n.Start(Agent, c.binary(), "agent", "--config", "/etc/weft/agent.yaml")
}

// AwaitAgent waits until a node's agent is ready.
func (c *Cluster) AwaitAgent(n *Node) {
	c.t.Helper()
	c.Eventually("the agent of "+n.Name+" is ready", func(ctx context.Context) error {
		r, err := n.Admin().Ready(ctx)
		if err == nil && !r.Ready {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
}

// binary is the weft that all agents run.
func (c *Cluster) binary() string {
	c.t.Helper()
	path := os.Getenv("WEFT_BINARY")
	if path == "" {
		path = filepath.Join(c.dir, "weft")
		if _, err := os.Stat(path); err != nil {
			build(c.t, path, "./cmd/weft")
			build(c.t, path+"-sealer", "./cmd/weft-sealer")
		}
	}
	return path
}

// installCNI puts the plugin and its network where docs/cni.md says.
func (c *Cluster) installCNI(n *Node) {
	c.t.Helper()
	if err := os.Symlink(c.binary(), n.Path("/opt/cni/bin/weft-cni")); err != nil {
		c.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root(), "docs", "cni.md"))
	if err != nil {
		c.t.Fatal(err)
	}
	_, text2, ok := strings.Cut(string(text), "`/etc/cni/net.d/10-weft.conflist`:\n\n```json\n")
	list, _, ended := strings.Cut(text2, "```")
	if !ok || !ended {
		c.t.Fatal("docs/cni.md does not show 10-weft.conflist any more")
	}
	n.Write("/etc/cni/net.d/10-weft.conflist", list)
}

// keys are what the nodes of a cluster seal packets with: certificates of one authority and a
// key-encryption key.
type keys struct {
	authority *ca.Authority
	kek       []byte
}

func newKeys(t testing.TB, dir string) *keys {
	t.Helper()
	authority, err := ca.Init(filepath.Join(dir, "ca"), "weft.local", ca.DefaultRootValid)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kek")
	if _, err := kek.CreateKeyFile(path); err != nil {
		t.Fatal(err)
	}
	secret, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return &keys{authority, secret}
}

// give puts a node's keys where agents look for them.
func (k *keys) give(t testing.TB, n *Node) {
	t.Helper()
	n.Write("/etc/weft/kek", string(k.kek))
	id, err := k.authority.Issue(n.Name, ca.DefaultValid)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Zero()
	if err := id.Write(nodeid.Paths{Cert: n.Path("/etc/weft/node.crt"),
		Key: n.Path("/etc/weft/node.key"), Bundle: n.Path("/etc/weft/ca.crt")}); err != nil {
		t.Fatal(err)
	}
}
