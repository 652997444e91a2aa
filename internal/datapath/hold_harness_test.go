package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/netns"
)

// upgradeWorld is a node with one pod and a wire, in namespaces of their own, whose agents come and
// go.
//
//	eth0 (pod) ── wtpod [ node ] wire1 ── wire0
type upgradeWorld struct {
	node, podNS, dir string
	opts             Options
	ep               Endpoint
	peer             Node
	wire, pod        int // packet sockets at wire0 and eth0
}

// Frames to hiddenPort must not arrive; those to lastPort say that all before them have, if they
// were to.
const (
	hiddenPort = 6666
	lastPort   = 7777
	espPort    = 4500
)

var otherNode = addr("192.0.2.2")

func newUpgradeWorld(t *testing.T, mode Mode) *upgradeWorld {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs and makes network namespaces")
	}
	dir, err := privateBPFFS()
	must(t, err)
	w := &upgradeWorld{dir: dir, node: upgradeNS(t, "node"), podNS: upgradeNS(t, "pod")}
	out := upgradeNS(t, "out")
	t.Cleanup(func() { os.RemoveAll(dir) })
	link := func(name, mac, peer, ns, peerMAC string) string {
		return fmt.Sprintf("link add %s address %s type veth peer name %s netns %s address %s",
			name, mac, peer, filepath.Base(ns), peerMAC)
	}
	ipBatch(t, w.node, "link set lo up",
		link("wire1", uplinkMAC.String(), "wire0", out, peerMAC.String()),
		link("wtpod", gatewayMAC.String(), "eth0", w.podNS, podA.MAC.String()), "link set wire1 up",
		"link set wtpod up",
		"addr add 192.0.2.1/24 dev wire1",
		"neigh add 192.0.2.2 lladdr "+peerMAC.String()+" dev wire1 nud permanent",
		"route add 10.1.0.10/32 dev wtpod",
		"neigh add 10.1.0.10 lladdr "+podA.MAC.String()+" dev wtpod nud permanent")
	ipBatch(t, out, "link set wire0 up")
	ipBatch(t, w.podNS, "link set eth0 up")
	must(t, netns.Do(w.node, func() error {
		return errors.Join(netdev.WriteSysctl("ipv4/conf/all/rp_filter", "0"),
			netdev.WriteSysctl("ipv4/conf/wire1/rp_filter", "0"),
			netdev.WriteSysctl("ipv4/conf/wtpod/rp_filter", "0"))
	}))
	w.opts = Options{
		BPFDir: dir, StateDir: t.TempDir(), Mode: mode, Uplinks: []string{"wire1"},
		HostAddrs: []netip.Addr{node4},
		PodCIDRs:  []netip.Prefix{mustPrefix("10.1.0.0/24")}, FlowEntries: 64, EventsPerSecond: 100,
		Log:     slog.New(slog.DiscardHandler),
		Encrypt: &esp.Options{Engine: "bpf", AllowTableAES: true, Port: espPort, Lanes: 1},
	}
	w.ep = podA
	w.ep.HostIf, w.ep.PodIf, w.ep.NetNS, w.ep.IPv6 = "wtpod", "eth0", w.podNS, netip.Addr{}
	w.peer = Node{Name: "b", Addresses: []netip.Addr{otherNode},
		PodCIDRs: []netip.Prefix{mustPrefix("10.2.0.0/24")}}
	w.wire, w.pod = packetSocket(t, out, "wire0"), packetSocket(t, w.podNS, "eth0")
	return w
}

func upgradeNS(t *testing.T, name string) string {
	t.Helper()
	bpffsCount++
	name = fmt.Sprintf("wt-up-%d-%d-%s", os.Getpid(), bpffsCount, name)
	path, err := netns.Create(name)
	must(t, err)
	t.Cleanup(func() {
		if err := netns.Delete(name); err != nil {
			t.Error(err)
		}
	})
	return path
}

func ipBatch(t *testing.T, ns string, commands ...string) {
	t.Helper()
	must(t, netns.Do(ns, func() error {
		command := exec.Command("ip", "-batch", "-")
		command.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("ip: %w: %s", err, out)
		}
		return nil
	}))
}

func packetSocket(t *testing.T, ns, name string) (fd int) {
	t.Helper()
	must(t, netns.Do(ns, func() error {
		device, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC,
			int(all)); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device.Index}))
	}))
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// start opens the datapath as an agent does that starts.
func (w *upgradeWorld) start(t *testing.T) *Datapath {
	t.Helper()
	var d *Datapath
	must(t, w.inside(func() (err error) {
		d, err = Open(w.opts)
		return err
	}))
	return d
}

func (w *upgradeWorld) inside(f func() error) error { return netns.Do(w.node, f) }

func (w *upgradeWorld) setNodes(t *testing.T, d *Datapath) error {
	t.Helper()
	return w.inside(func() error { return d.SetNodes(t.Context(), []Node{w.peer}) })
}

func (w *upgradeWorld) enter(d *Datapath) error {
	return w.inside(func() error { return d.EnterEndpoints([]Endpoint{w.ep}) })
}

// before is a whole run of the agent before: when it ends, all that is allowed passes.
func (w *upgradeWorld) before(t *testing.T) {
	t.Helper()
	d := w.start(t)
	must(t, errors.Join(w.setNodes(t, d), w.finish(d)))
	must(t, w.inside(func() error {
		for lane := range uint8(d.sas.Lanes()) {
			sa := &esp.SA{Node: "b", Out: true, Epoch: sealEpoch, Lane: lane, ID: 77,
				Number: sealEpoch, Expires: time.Now().Add(time.Hour)}
			copy(sa.Key[:], keyOut)
			if err := d.sas.InstallSA(sa); err != nil {
				return err
			}
		}
		return errors.Join(d.sas.SealWith("b", sealEpoch), d.Close())
	}))
}

// finish attaches the pod, and ends bringing the node up.
func (w *upgradeWorld) finish(d *Datapath) error {
	return w.inside(func() error { return errors.Join(d.AttachEndpoint(w.ep), d.Prune([]Endpoint{w.ep})) })
}

// relayout makes the pinned maps of that name another release's.
func (w *upgradeWorld) relayout(t *testing.T, names ...string) {
	t.Helper()
	for i, name := range names {
		pins, err := filepath.Glob(filepath.Join(w.dir, bpf.MapPin+name+"-*"))
		if must(t, err); len(pins) != 1 {
			t.Fatalf("pins of %s: %v", name, pins)
		}
		parts := strings.Split(pins[0], "-")
		parts[len(parts)-2] = fmt.Sprintf("0000000%d", i)
		must(t, os.Rename(pins[0], strings.Join(parts, "-")))
	}
}

// programs are those that the node's hooks have now.
func (w *upgradeWorld) programs(t *testing.T) map[string]uint32 {
	t.Helper()
	out := map[string]uint32{}
	links, err := hook.List(w.dir)
	must(t, err)
	for _, l := range links {
		if l.Iface != "wire1" && l.Iface != netdev.Sealer && l.Iface != hook.AllInterfaces {
			continue
		}
		pinned, err := link.LoadPinnedLink(l.Path, nil)
		must(t, err)
		info, err := pinned.Info()
		pinned.Close()
		must(t, err)
		out[filepath.Base(l.Path)] = uint32(info.Program)
	}
	return out
}

func (w *upgradeWorld) unchanged(t *testing.T, was map[string]uint32, when string) {
	t.Helper()
	now := w.programs(t)
	for name, id := range was {
		if now[name] != id {
			t.Errorf("%s: %s has another program", when, name)
		}
	}
}

func (w *upgradeWorld) replaced(t *testing.T, was map[string]uint32) {
	t.Helper()
	now := w.programs(t)
	for name, id := range was {
		if now[name] == id || now[name] == 0 {
			t.Errorf("%s has program %d, before the upgrade %d", name, now[name], id)
		}
	}
}

// closed tries what must not pass: in cleartext to other nodes' pods, from the pod to another node,
// and in from the wire in another node's pod's name.
func (w *upgradeWorld) closed(t *testing.T, when string) {
	t.Helper()
	fromPod := func(to netip.Addr) []byte {
		return newPacket(podA.MAC, gatewayMAC, podA.IPv4, to).udp(1000, hiddenPort, 32).bytes()
	}
	fromWire := func(from netip.Addr, port uint16) []byte {
		return newPacket(peerMAC, uplinkMAC, from, podA.IPv4).udp(1000, port, 32).bytes()
	}
	for _, s := range []struct {
		fd    int
		frame []byte
	}{
		{w.pod, fromPod(peer4)}, {w.pod, fromPod(otherNode)}, {w.wire, fromWire(peer4, hiddenPort)},
		{w.wire, fromWire(nobody4, hiddenPort)},
		{w.wire, fromWire(world4, lastPort)},
	} {
		_, err := unix.Write(s.fd, s.frame)
		must(t, err)
	}
	_ = w.fromHost(peer4, hiddenPort) // what is refused may tell
	must(t, w.fromHost(otherNode, lastPort))
	if sealed := w.noSecret(t, w.wire, when+": on the wire"); sealed < 3 {
		t.Errorf("%s: %d sealed packets on the wire, want the pod's two and the host's", when,
			sealed)
	}
	w.noSecret(t, w.pod, when+": at the pod")
}

// fromHost sends a packet from the node itself.
func (w *upgradeWorld) fromHost(to netip.Addr, port uint16) error {
	return w.inside(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, port).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("from this host"))
		return err
	})
}

// noSecret reads up to the last packet, and counts those that are sealed.
func (w *upgradeWorld) noSecret(t *testing.T, fd int, where string) (sealed int) {
	t.Helper()
	buffer := make([]byte, 2048)
	for {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if must(t, err); ready == 0 {
			t.Fatalf("%s: what may pass does not", where)
		}
		n, err := unix.Read(fd, buffer)
		if must(t, err); n < 42 || buffer[12] != 8 || buffer[13] != 0 ||
			buffer[23] != unix.IPPROTO_UDP {
			continue
		}
		switch binary.BigEndian.Uint16(buffer[36:]) {
		case hiddenPort:
			t.Errorf("%s: %s > %s in cleartext", where, net.IP(buffer[26:30]),
				net.IP(buffer[30:34]))
		case espPort:
			sealed++
		case lastPort:
			return sealed
		}
	}
}
