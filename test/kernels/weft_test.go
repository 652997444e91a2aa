package kernels

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/test/espref"
)

const (
	weftEpoch    = 3
	podIdentity  = 4711
	nearIdentity = 815
	weftLanes    = 2
)

var (
	podMAC     = mac(0xa)
	gatewayMAC = []byte{0x02, 0x57, 0x45, 0x46, 0x54, 0x01}
)

// weftNode is the peer of an xfrmNode: a node with Weft's datapath and one pod.
//
//	eth0 (pod) ── wtpod [ Weft ] wire1 ── wire0 [ XFRM ]
type weftNode struct {
	*datapath.Datapath
	sas        *esp.Associations
	ns, bpfDir string
	pod        *port
	six        bool
	ids        uint64      // fingerprints given out
	sealer     *realSealer // of engine user
}

// newWeft makes both nodes; the tunnel between them is for outer to make.
func newWeft(t *testing.T, mode datapath.Mode, engine string) (*weftNode, *xfrmNode) {
	t.Helper()
	needRoot(t)
	w := &weftNode{ns: newNS(t, "weft"),
		bpfDir: fmt.Sprintf("/sys/fs/bpf/wt-kn-%d-%s", os.Getpid(), engine)}
	x := newXFRM(t, w.ns)
	x.set(t, state{sa: testKey(1)}) // skips where the kernel cannot
	if engine == "kmod" {
		loadModule(t)
	}
	podNS := newNS(t, "pod")
	w.addInterfaces(t, podNS)
	must(t, netns.Do(x.ns, func() error { return receiveXDP("wire0") }))
	w.pod = newPort(t, podNS, "eth0")
	must(t, netns.Do(w.ns, func() error { return w.open(t, mode, engine, podNS) }))
	if engine == esp.EngineUser {
		w.sealer = w.startSealer(t)
		// Weft has the pod's stack build no larger packets than suit the sealer. The device is the
		// pod's to change.
		must(t, ip(podNS, "link set eth0 gso_max_segs 65535"))
	}
	return w, x
}

// receiveXDP makes a veth take what XDP redirects to its peer: only with NAPI does it, which GRO
// switches on.
func receiveXDP(name string) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	return tool.Change(name, map[string]bool{"rx-gro": true})
}

func (w *weftNode) addInterfaces(t *testing.T, podNS string) {
	t.Helper()
	sysctls(t, w.ns, map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0",
		"ipv4/conf/default/rp_filter": "0",
	})
	must(t, ip(w.ns,
		"link set lo up",
		"addr add "+peer4.String()+"/24 dev wire1",
		"addr add "+peer6.String()+"/64 dev wire1 nodad",
		fmt.Sprintf("neigh replace %s lladdr %s dev wire1 nud permanent", xfrm4, wire0MAC),
		fmt.Sprintf("neigh replace %s lladdr %s dev wire1 nud permanent", xfrm6, wire0MAC),
		fmt.Sprintf("link add wtpod mtu 1500 type veth peer name eth0 address %s mtu 1500", podMAC),
		"link set wtpod up",
	))
	must(t, netns.Do(w.ns, func() error { return moveLink("eth0", podNS) }))
	must(t, ip(podNS, "link set lo up", "link set eth0 up"))
}

func (w *weftNode) open(t *testing.T, mode datapath.Mode, engine, podNS string) error {
	var err error
	w.Datapath, err = datapath.Open(datapath.Options{
		BPFDir: w.bpfDir, StateDir: t.TempDir(), Mode: mode, Uplinks: []string{"wire1"},
		HostAddrs: []netip.Addr{peer4, peer6},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"),
			netip.MustParsePrefix("fd00:1::/64")},
		FlowEntries: 4096, EventsPerSecond: 100, Log: slog.New(slog.DiscardHandler),
		Encrypt: &esp.Options{Engine: engine, AllowTableAES: true, Port: espref.Port,
			Lanes: weftLanes},
	})
	if err != nil {
		return err
	}
	t.Cleanup(func() {
		_ = w.Close()
		if err := os.RemoveAll(w.bpfDir); err != nil {
			t.Error(err)
		}
	})
	if w.sas, err = w.Associations(); err != nil {
		return err
	}
	if status := w.sas.EngineStatus(); status.Active != engine && engine != esp.EngineUser {
		return fmt.Errorf("engine %s: %s", status.Active, status.Why)
	}
	return w.AttachEndpoint(datapath.Endpoint{Slot: 1, HostIf: "wtpod", NetNS: podNS, PodIf: "eth0",
		MAC: podMAC, GatewayMAC: gatewayMAC,
		IPv4: far4, IPv6: far6, MTU: 1500, Identity: podIdentity})
}

// outer makes the tunnel one over IPv4 or IPv6.
func (w *weftNode) outer(t *testing.T, six bool) {
	t.Helper()
	w.six = six
	remote := xfrm4
	if six {
		remote = xfrm6
	}
	node := datapath.Node{Name: "x", Addresses: []netip.Addr{remote},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"),
			netip.MustParsePrefix("fd00:2::/64")}}
	must(t, netns.Do(w.ns, func() error { return w.SetNodes(t.Context(), []datapath.Node{node}) }))
	must(t, w.SetPeerIdentities(map[string][]uint32{"x": {nearIdentity}}))
}

func spi(lane uint32, identity uint32) uint32 { return weftEpoch<<28 | lane<<22 | identity }

// rekey gives both ends fresh keys. Weft's counters begin after sealed, XFRM's after opened.
func (w *weftNode) rekey(t *testing.T, x *xfrmNode, sealed, opened uint64) {
	t.Helper()
	must(t, netns.Do(w.ns, func() error {
		_ = w.sas.SealWith("x", 0)
		for _, out := range []bool{true, false} {
			if err := w.sas.RemoveSAs("x", out, weftEpoch); err != nil {
				return err
			}
		}
		return nil
	}))
	var states []state
	for lane := range uint32(w.sas.Lanes()) {
		sa := testKey(byte(0x10 + lane))
		sa.SPI = spi(lane, podIdentity)
		states = append(states, state{sa: sa, six: w.six, seq: sealed})
		w.install(t, sa, true, lane)
	}
	// XFRM has one lane; of engine user it is its sealer's, which the port says.
	sa, lane, from := testKey(0x80), uint32(0), uint16(espref.Port)
	if w.sealer != nil {
		lane, from = weftLanes, 0x8123
	}
	sa.SPI = spi(lane, nearIdentity)
	states = append(states, state{sa: sa, out: true, six: w.six, seq: opened, from: from})
	w.install(t, sa, false, lane)
	w.ids++
	if w.sealer != nil {
		w.sealer.rekey(t)
	}
	must(t, w.sas.SealWith("x", weftEpoch))
	for lane := range uint32(w.sas.Lanes()) {
		w.setCounter(t, lane, sealed)
	}
	x.set(t, states...)
}

func (w *weftNode) install(t *testing.T, sa espref.SA, out bool, lane uint32) {
	t.Helper()
	must(t,
		w.sas.InstallSA(&esp.SA{Node: "x", Out: out, Epoch: weftEpoch, Lane: uint8(lane),
			ID: 2*w.ids + 1, Number: weftEpoch,
			Last: !out && lane == weftLanes, Key: [32]byte(sa.Key), Salt: sa.Salt,
			Expires: time.Now().Add(time.Hour)}))
}

// setCounter makes Weft go on after a sequence number that it would take days to reach. Nothing but
// a program can write into the entry, since user space would replace it, and its key with it.
func (w *weftNode) setCounter(t *testing.T, lane uint32, counter uint64) {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(w.bpfDir, "maps-weft_sa_out-*"))
	must(t, err)
	if len(pins) != 1 {
		t.Fatalf("pins of weft_sa_out: %v", pins)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	must(t, err)
	defer m.Close()
	var key uint32
	var value []byte
	found := false
	for entries := m.Iterate(); entries.Next(&key, &value); {
		if key>>6&15 != weftEpoch || key&63 != lane {
			continue
		}
		found = true
		must(t, writeField(m, key, counterOffset(t), counter))
	}
	if !found {
		t.Fatalf("no SA of lane %d", lane)
	}
}

func counterOffset(t *testing.T) int16 {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec("../../internal/datapath/bpf/obj/sa_xdp.o")
	must(t, err)
	var entry *btf.Struct
	must(t, spec.Types.TypeByName("weft_sa_out", &entry))
	i := slices.IndexFunc(entry.Members, func(m btf.Member) bool { return m.Name == "counter" })
	if i < 0 {
		t.Fatal("weft_sa_out has no counter")
	}
	return int16(entry.Members[i].Offset.Bytes())
}

func writeField(m *ebpf.Map, key uint32, offset int16, value uint64) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, int64(key), asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.LoadImm(asm.R1, int64(value), asm.DWord),
			asm.StoreMem(asm.R0, offset, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		}})
	if err != nil {
		return fmt.Errorf("load the program that writes a counter: %w", err)
	}
	defer program.Close()
	_, err = program.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	return err
}

// onCPU runs fn with its thread on one CPU, which decides the lane.
func onCPU(cpu int, fn func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	one.Set(cpu % runtime.NumCPU())
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	return fn()
}

// byLength orders packets: what two CPUs have sealed may overtake each other.
func byLength(a, b []byte) int { return len(a) - len(b) }

// cross sends packets in at one end, from two CPUs, and compares what comes out of the other, two
// routers later.
func cross(from, to *port, packets [][]byte, header func([]byte) []byte) error {
	var want [][]byte
	for cpu, half := range [][][]byte{packets[:len(packets)/2], packets[len(packets)/2:]} {
		err := onCPU(cpu, func() error {
			for _, p := range half {
				if err := from.send(header(p)); err != nil {
					return err
				}
				want = append(want, forwarded(p, 2))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	got, err := to.receive(len(packets), isExperimental)
	if err != nil {
		return err
	}
	slices.SortStableFunc(got, byLength)
	return sameSet(got, want)
}

// TestXFRMAndWeft has Linux's own ESP open what Weft seals, and Weft open what it seals: both
// engines, as XDP and as TC, and a sealer, which opens what comes of its lane; both families inside
// and outside, every size, across the change of the sequence number's upper half.
func TestXFRMAndWeft(t *testing.T) {
	for _, way := range []struct {
		engine string
		mode   datapath.Mode
	}{
		{"bpf", datapath.ModeXDP}, {"bpf", datapath.ModeTC}, {"kmod", datapath.ModeXDP},
		{"kmod", datapath.ModeTC},
		{esp.EngineUser, datapath.ModeTC},
	} {
		t.Run(fmt.Sprintf("%s/%s", way.engine, way.mode), func(t *testing.T) {
			w, x := newWeft(t, way.mode, way.engine)
			for _, f := range families {
				w.outer(t, f.six)
				t.Run(f.name, func(t *testing.T) { w.bothWays(t, x, f.near, f.far) })
			}
		})
	}
}

func (w *weftNode) bothWays(t *testing.T, x *xfrmNode, near, far netip.Addr) {
	longest := maxInner(w.six)
	packets := uint64(longest / shares())
	w.rekey(t, x, edge-packets/4, edge-packets/2) // two lanes share what is sealed
	t.Run("XFRM opens", func(t *testing.T) {
		err := everySize(t, far, near, longest, func(p [][]byte) error {
			return cross(w.pod, x.inside, p,
				func(p []byte) []byte { return frame(gatewayMAC, podMAC, p) })
		})
		if err != nil {
			t.Errorf("%v; XFRM counts: %s; Weft: %s", err, x.errors(t), w.tells())
		}
	})
	t.Run("XFRM seals", func(t *testing.T) {
		err := everySize(t, near, far, longest, func(p [][]byte) error {
			return w.opening(t, func() error {
				return cross(x.inside, w.pod, p,
					func(p []byte) []byte { return frame(inside0MAC, inside1MAC, p) })
			})
		})
		if err != nil {
			t.Errorf("%v; XFRM counts: %s; Weft: %s", err, x.errors(t), w.tells())
		}
	})
	w.crossed(t)
}

// crossed makes sure that the test did what it says: every key in use is beyond 2^32.
func (w *weftNode) crossed(t *testing.T) {
	t.Helper()
	sas, err := w.sas.SAs()
	must(t, err)
	opened, sealed := 0, 0
	for _, sa := range sas {
		switch {
		case sa.Counter <= edge:
		case sa.Out:
			sealed++
		default:
			opened++
		}
	}
	if sealed == 0 || opened == 0 {
		t.Errorf("no key beyond 2^32 in one direction: %+v", sas)
	}
}

// tells is what Weft dropped, by name, and its keys.
func (w *weftNode) tells() string {
	counters, err := w.Counters()
	if err != nil {
		return err.Error()
	}
	said := ""
	for _, c := range counters {
		said += fmt.Sprintf(" %s %s %s %d", c.Direction, c.Verdict, c.Reason, c.Packets)
	}
	sas, _ := w.sas.SAs()
	for _, sa := range sas {
		said += fmt.Sprintf("; lane %d out %v at %d, %d packets", sa.Lane, sa.Out, sa.Counter,
			sa.Packets)
	}
	return said
}
