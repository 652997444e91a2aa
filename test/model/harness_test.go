package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/test/labtest"
)

// patience bounds every wait. Nothing here takes a twentieth of it on a machine with time.
const patience = 3 * time.Minute

// The machine out knows nothing of Weft. The default routes of the nodes lead there: what has no
// other way leaves by it.
const twoNodes = `
name: set-later
agent:
  keys: {drain: 300ms}
` + labtest.ABOut + `pods:
  - {name: client, node: a, namespace: shop, serviceAccount: client, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: db, node: a, namespace: shop, addresses: [10.77.1.100, "fd77:1::100"]}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
  - {name: web, node: b, namespace: open, addresses: [10.77.2.80, "fd77:2::80"]}
  - {name: isolated, node: b, namespace: vault, addresses: [10.77.2.60, "fd77:2::60"]}
`

// sealerNode has a sealer; the other node seals and opens in its hooks.
const sealerNode = "b"

var nodeNames = [ports]string{"a", "b", "out"}

// comers are the pods that come and go.
var comers = []lab.PodSpec{
	comer("x1", "a", 1, ""), comer("x2", "a", 2, "xdp"), comer("y1", "b", 1, ""),
	comer("y2", "b", 2, "xdp"),
}

func comer(name, node string, number int, path string) lab.PodSpec {
	net := map[string]int{"a": 1, "b": 2}[node]
	return lab.PodSpec{Name: name, Node: node, Namespace: "shop", ServiceAccount: name,
		PodDatapath: path, Addresses: []netip.Addr{
			netip.MustParseAddr(fmt.Sprintf("10.77.%d.%d", net, 20+number)),
			netip.MustParseAddr(fmt.Sprintf("fd77:%d::%d", net, 20+number)),
		}}
}

// host is a node with an agent, and what the model knows of it.
type host struct {
	*lab.Node
	port      int
	mode      string
	mac       net.HardwareAddr // of its uplink, nil if it has none
	up        bool             // its uplink
	ready     bool             // its agent said so when it was started last
	guarded   bool             // its uplink has been seen with hooks since it is there
	udp, evil [2]int
	// spare are addresses of its ranges that no pod has.
	spare [2]netip.Addr
}

func (h *host) close() {
	for _, fd := range append(h.udp[:], h.evil[:]...) {
		unix.Close(fd)
	}
}

func (h *host) alive() bool { return h.PID() != 0 }

// world is the lab, what was done to it, and what it should be.
type world struct {
	t       *testing.T
	lab     *lab.Lab
	rand    *rand.Rand
	hosts   []*host
	prober  *prober
	watch   *watch
	objects *objects
	// mayBePlain says that a policy for pod web is, or was, in use by some datapath.
	mayBePlain bool
	step       int
	history    []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	spec, err := lab.Parse([]byte(twoNodes))
	if err != nil {
		t.Fatal(err)
	}
	spec.Name = labName
	for i := range spec.Nodes {
		if spec.Nodes[i].Bare() {
			continue
		}
		engine := "bpf"
		if spec.Nodes[i].Name == sealerNode {
			engine = "user"
		}
		spec.Nodes[i].Config = map[string]any{"encryption": map[string]any{"engine": engine}}
	}
	l, err := lab.Up(t.Context(), spec,
		lab.Options{Binary: weftBinary, ReadyTimeout: labtest.ReadyTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range l.Nodes() { // one that still starts would refuse to let pods go
			if !n.Bare && n.PID() != 0 && t.Failed() {
				_ = n.KillAgent(context.Background())
			}
		}
		if err := l.Down(context.Background()); err != nil && !errors.Is(err, labdir.ErrNoLab) {
			t.Errorf("take the lab down: %v", err)
		}
	})
	w := &world{t: t, lab: l, rand: rand.New(rand.NewPCG(seed, 1))}
	if err := w.begin(); err != nil {
		t.Fatal(err)
	}
	return w
}

// begin opens every socket and starts to look.
func (w *world) begin() error {
	w.prober = &prober{rand: rand.New(rand.NewPCG(seed, 2))}
	w.prober.plain = func(p *pod) bool { return p.Namespace == "open" && w.mayBePlain }
	rules := encryptcheck.Rules{}
	for port, name := range nodeNames[:2] {
		h, err := newHost(w.lab.Node(name), port)
		if err != nil {
			return err
		}
		w.hosts = append(w.hosts, h)
		rules.Pods, rules.Nodes = append(rules.Pods, h.PodCIDRs...), append(rules.Nodes,
			h.Addresses...)
		if err := h.route(); err != nil {
			return err
		}
	}
	web := w.lab.Pod("web")
	rules.Allowed = []netip.Prefix{netip.PrefixFrom(web.IPv4, 32), netip.PrefixFrom(web.IPv6, 128)}
	w.prober.hosts = w.hosts
	for _, p := range w.lab.Pods() {
		o, err := newPod(p, "")
		if err != nil {
			return err
		}
		w.prober.pods = append(w.prober.pods, o)
	}
	var err error
	if w.watch, err = newWatch(netns.Path("weft-"+w.lab.Name()+"-wire-w0"), rules); err != nil {
		return err
	}
	w.prober.watch = w.watch
	if w.objects, err = newObjects(w.lab); err != nil {
		return err
	}
	if err := w.isolate(); err != nil {
		return err
	}
	w.prober.run()
	w.t.Cleanup(func() {
		w.prober.halt()
		if err := w.watch.end(); err != nil {
			w.t.Error(err)
		}
	})
	return nil
}

func newHost(n *lab.Node, port int) (*host, error) {
	h := &host{Node: n, port: port, mode: "auto", up: true, ready: true}
	for i, p := range n.PodCIDRs {
		last := p.Addr().AsSlice()
		last[len(last)-1] = 250
		h.spare[i], _ = netip.AddrFromSlice(last)
	}
	err := n.Do(func() (err error) {
		if h.udp, err = udpSockets(goodPort); err != nil {
			return err
		}
		h.evil, err = udpSockets(evilPort)
		return err
	})
	return h, errors.Join(err, h.readMAC())
}

func (h *host) readMAC() error {
	return h.Do(func() error {
		i, err := net.InterfaceByName("w0")
		if err == nil {
			h.mac = i.HardwareAddr
		}
		return err
	})
}

// pod finds a pod by name, nil if there is none.
func (w *world) pod(name string) *pod {
	if i := slices.IndexFunc(w.prober.pods, func(p *pod) bool { return p.Name == name }); i >= 0 {
		return w.prober.pods[i]
	}
	return nil
}

// context bounds one thing that is done to the lab.
func (w *world) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.t.Context(), patience)
}

func client(h *host) *admin.Client { return admin.NewClient(h.Socket) }

// poll asks until ok returns nil, and returns its last answer.
func poll(what string, ok func() error) error {
	var last error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(20 * time.Millisecond) {
		if last = ok(); last == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: not within %s: %w", what, patience, last)
}

// writeMode changes the mode in a node's configuration, for the agent's next start.
func (h *host) writeMode(mode string) error {
	data, err := os.ReadFile(h.ConfigFile)
	if err != nil {
		return err
	}
	config := map[string]any{}
	if err := yaml.Unmarshal(data, &config); err != nil {
		return err
	}
	config["mode"], h.mode = mode, mode
	if data, err = yaml.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(h.ConfigFile, data, 0o644)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func endpointFile(l *lab.Lab, p *lab.Pod) string {
	return filepath.Join(l.ObjectsDir(), "endpoints", p.Namespace+"--"+p.Name+".yaml")
}
