package datapath

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/bpf/bpftest"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/flowtable"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/datapath/policymap"
	"weft.dev/weft/internal/netns"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func mac(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }

// The world of the tables: two pods on this node, one peer that is resolved, one that is not.
var (
	gatewayMAC = net.HardwareAddr{0x02, 0x57, 0x45, 0x46, 0x54, 0x01}
	podA       = Endpoint{Slot: 1, HostIf: "wta", MAC: mac(0xa), GatewayMAC: gatewayMAC,
		IPv4: addr("10.1.0.10"), IPv6: addr("fd00:1::10"), MTU: 1500}
	podB = Endpoint{Slot: 2, HostIf: "wtb", MAC: mac(0xb), GatewayMAC: gatewayMAC,
		IPv4: addr("10.1.0.11"), IPv6: addr("fd00:1::11"), MTU: 1500}

	uplinkMAC, peerMAC = mac(0x10), mac(0x20)
	node4, node6       = addr("192.0.2.1"), addr("2001:db8::1")
	peer4, peer6       = addr("10.2.0.20"), addr("fd00:2::20")
	cold4, cold6       = addr("10.3.0.30"), addr("fd00:3::30") // pods of a node that is not resolved yet
	nobody4, nobody6   = addr("10.1.0.99"), addr("fd00:1::99") // in this node's range, without an endpoint
	world4, world6     = addr("198.51.100.7"), addr("2001:db8:ffff::7")
)

const flowEntries = 4096

// harness is the programs on maps of their own, in a network namespace of their own, with the
// world's interfaces in it. One per process: loading takes longer than all the tables.
type harness struct {
	*Datapath
	index map[string]int // interface name to index
	calls chan func()    // run inside the namespace
}

type onceHarness struct {
	once    sync.Once
	harness *harness
	err     error
}

var theHarness, theSealHarness onceHarness

// newHarness returns the harness with the world freshly set up.
func newHarness(t testing.TB) *harness { return theHarness.use(t, nil) }

func (o *onceHarness) use(t testing.TB, encrypt *esp.Options) *harness {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads BPF programs and makes a network namespace")
	}
	o.once.Do(func() { o.harness, o.err = makeHarness(encrypt) })
	if o.err != nil {
		t.Fatal(o.err)
	}
	o.harness.reset(t)
	return o.harness
}

func makeHarness(encrypt *esp.Options) (*harness, error) {
	b := &harness{index: map[string]int{}, calls: make(chan func())}
	bpffsCount++
	name := fmt.Sprintf("wt-dp-%d-%d", os.Getpid(), bpffsCount)
	path, err := netns.Create(name)
	if err != nil {
		return nil, err
	}
	entered := make(chan error)
	go func() {
		_ = netns.Do(path, func() error {
			entered <- b.makeInterfaces()
			for call := range b.calls {
				call()
			}
			return nil
		})
	}()
	// The thread inside keeps the namespace: without a name nothing is left behind, however the
	// process ends.
	if err := errors.Join(<-entered, netns.Delete(name)); err != nil {
		return nil, err
	}
	b.Datapath = &Datapath{
		log: slog.New(slog.DiscardHandler), mode: ModeStatus{Asked: ModeXDP, Active: ModeXDP},
		opts: Options{HostAddrs: []netip.Addr{node4, node6}, EventsPerSecond: 1000,
			Encrypt: encrypt},
	}
	dir, err := privateBPFFS()
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // open maps need no pins
	if b.maps, err = openMaps(dir, flowEntries, encrypt != nil, b.log); err != nil {
		return nil, err
	}
	if b.table, err = flowtable.Open(b.maps, b.log); err != nil {
		return nil, err
	}
	if b.progs, err = hook.Load(b.maps, testRunConstants(b.Datapath), true); err != nil {
		return nil, err
	}
	b.segment = segmentLinks{host: uint32(b.index["wtx"]),
		net: 1 << 20} // any interface will do: no packet leaves the tables
	return b, b.openAssociations("")
}

// testRunConstants are those of the programs that BPF_PROG_TEST_RUN runs.
func testRunConstants(d *Datapath) map[string]any {
	constants := d.constants()
	constants["weft_test_run"] = uint8(1)
	return constants
}

var bpffsCount int

// privateBPFFS makes a pin directory of this process. The caller removes it.
func privateBPFFS() (string, error) {
	const root = "/sys/fs/bpf"
	if checkBPFFS(root) != nil {
		if err := unix.Mount("bpf", root, "bpf", 0, ""); err != nil {
			return "", fmt.Errorf("mount bpffs: %w", err)
		}
	}
	bpffsCount++
	dir := filepath.Join(root, fmt.Sprintf("wt-dp-%d-%d", os.Getpid(), bpffsCount))
	return dir, os.Mkdir(dir, 0o700)
}

func (b *harness) makeInterfaces() error {
	for _, name := range []string{"wta", "wtb", "wtup", "wtx", "wty"} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs,
			PeerName: name + "-peer"}); err != nil {
			return fmt.Errorf("make veth %s: %w", name, err)
		}
		l, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		b.index[name] = l.Index
	}
	return nil
}

// inside runs f in the harness's network namespace.
func (b *harness) inside(f func() error) error {
	done := make(chan error)
	b.calls <- func() { done <- f() }
	return <-done
}

// reset empties every map and enters the world anew.
func (b *harness) reset(t testing.TB) {
	t.Helper()
	for _, m := range []*ebpf.Map{b.maps.EpIf, b.maps.EpAddr, b.maps.Routes, b.maps.Flows4,
		b.maps.Flows6, b.maps.Frags, b.maps.Drops, b.maps.Claimed, b.maps.Policy, b.maps.AddrIDs,
		b.maps.Classes} {
		must(t, emptyMap(m))
	}
	for slot := range uint32(8) {
		must(t, b.maps.EpSlot.Put(slot, &bpf.EpSlot{}))
	}
	policy, err := policymap.Open(b.maps)
	must(t, err)
	b.policy = policy
	must(t, b.resetBudgets())
	must(t, b.maps.EvStats.Put(uint32(0), make([]bpf.EventStats, ebpf.MustPossibleCPU())))
	b.eps, b.mode = map[uint16]Endpoint{}, ModeStatus{Asked: ModeXDP, Active: ModeXDP}
	b.config.FlowShare, b.settled = 0, false
	must(t, b.forgetPolicies())
	must(t, b.openNextHops())
	must(t, b.inside(b.configure))
	must(t, b.inside(b.hops.EnterOwnAddresses))
	for slot := range uint16(8) {
		must(t, b.clearCounters(slot))
	}
	must(t, b.putEndpoint(podA, []int{b.index["wta"]}))
	must(t, b.putEndpoint(podB, []int{b.index["wtb"]}))
	routes := map[string]uint32{"10.1.0.0/24": 0, "fd00:1::/64": 0, "10.2.0.0/24": 1,
		"fd00:2::/64": 1, "10.3.0.0/24": 2, "fd00:3::/64": 2}
	for prefix, node := range routes {
		key := bpf.RouteKeyOf(netip.MustParsePrefix(prefix))
		must(t, b.maps.Routes.Put(&key, &bpf.Route{Node: node}))
	}
	for _, family := range []uint32{0, 1} {
		must(t,
			b.maps.Nexthops.Put(2*2+family, &bpf.Nexthop{})) // node 2 is known, and not resolved
	}
	b.setPeer(t, bpf.Nexthop{
		Ifindex: uint32(b.index["wtup"]), Flags: bpf.NexthopResolved | bpf.NexthopXdpOut, Mtu: 1500,
		Dmac: bpf.ToMAC(peerMAC), Smac: bpf.ToMAC(uplinkMAC),
	})
}

// forgetPolicies takes out of the settings that endpoints have had policies, which configure keeps.
func (b *harness) forgetPolicies() error {
	if err := b.maps.Config.Lookup(uint32(0), &b.config); err != nil {
		return err
	}
	b.config.Flags &^= bpf.ConfigPolicy
	b.config.EitherUntil = 0
	return b.writeConfig()
}

// resetBudgets fills every bucket and frees what is gone from the flow table.
func (b *harness) resetBudgets() error {
	full := make([]uint64, ebpf.MustPossibleCPU())
	for slot := range uint32(2 * 8) {
		for which := range uint32(2) {
			if err := b.maps.Buckets.Put(2*slot+which, full); err != nil {
				return err
			}
		}
	}
	for _, shared := range []uint32{b.maps.Buckets.MaxEntries() - 2,
		b.maps.Buckets.MaxEntries() - 1} {
		if err := b.maps.Buckets.Put(shared, full); err != nil {
			return err
		}
	}
	_, err := b.table.Sweep(flowEntries)
	return err
}

// setPeer changes how node 1 is reached, in both families.
func (b *harness) setPeer(t testing.TB, entry bpf.Nexthop) {
	t.Helper()
	for _, index := range []uint32{2, 3} {
		must(t, b.maps.Nexthops.Put(index, &entry))
	}
	must(t, b.changed())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func emptyMap(m *ebpf.Map) error {
	keys, err := bpftest.Keys(m)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := bpf.DeleteKey(m, k); err != nil {
			return err
		}
	}
	return nil
}

// contexts are the two that every behaviour must be the same in.
var contexts = []string{"xdp", "tc"}

func (b *harness) program(context, name string) *ebpf.Program {
	kind := hook.TCIngress // which of TC's is all the same
	if context == "xdp" {
		kind = hook.XDP
	}
	return b.progs.Get(name, kind)
}

// send runs one frame through a hook and returns what the program said and the frame as it is then.
// A frame for from_pod comes from pod A's interface unless iface names another.
func (b *harness) send(t testing.TB, context, hook, iface string,
	frame []byte) (verdict string, out []byte) {
	t.Helper()
	return b.runProgram(t, b.program(context, hook), context, iface, frame)
}

func (b *harness) runProgram(t testing.TB, program *ebpf.Program, context, iface string,
	frame []byte) (verdict string, out []byte) {
	t.Helper()
	index := uint32(b.index[iface])
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512), Repeat: 1}
	var after xdpContext
	if context == "xdp" {
		options.Context, options.ContextOut = &xdpContext{DataEnd: uint32(len(frame)),
			IngressIfindex: index}, &after
	} else {
		options.Context = &skbContext{Ifindex: index}
	}
	var code uint32
	err := b.inside(func() (err error) {
		code, err = program.Run(options)
		return err
	})
	if errors.Is(err, unix.EINVAL) && context == "tc" && len(frame) < 14+40 {
		return "refused", frame // newer kernels take no skb in test_run that is shorter than its IP header
	}
	must(t, err)
	// A tag for the host's stack lies in front of the frame.
	return verdictOf(context, code), options.DataOut[after.Data:]
}

// verdictOf gives both contexts' codes one name. XDP_TX is none of them: a veth delivers it only to
// an end with an XDP program of its own.
func verdictOf(context string, code uint32) string {
	names := map[uint32]string{0: "aborted", 1: "drop", 2: "pass", 4: "redirect"}
	if context == "tc" {
		names = map[uint32]string{0xffffffff: "pass", 2: "drop", 7: "redirect"}
	}
	if name, ok := names[code]; ok {
		return name
	}
	return fmt.Sprintf("code %d", int32(code))
}

// counted lists what is not zero: "slot direction verdict packets" and, for drops, "slot direction
// reason packets".
func (b *harness) counted(t testing.TB) []string {
	t.Helper()
	rows, err := b.Counters()
	must(t, err)
	var list []string
	for _, r := range rows {
		what := r.Verdict
		if r.Reason != "" {
			what = r.Reason
		}
		list = append(list, fmt.Sprintf("%d %s %s %d", r.Slot, r.Direction, what, r.Packets))
	}
	return list
}

// flows lists the flow table as "src > dst proto state".
func (b *harness) flowList(t testing.TB) []Flow {
	t.Helper()
	rows, err := b.Flows(1 << 20)
	must(t, err)
	return rows
}

func ifaceFor(hook string) string {
	if strings.HasSuffix(hook, "wire") {
		return "wtup"
	}
	return "wta"
}

func TestMain(m *testing.M) {
	// Objects with a fault in them, which these tests must notice: see test/mutate.
	if dir := os.Getenv("WEFT_TEST_OBJECTS"); dir != "" {
		bpf.Objects = os.DirFS(dir)
	}
	code := m.Run()
	theSealerProcess.stop()
	for _, o := range []*onceHarness{&theHarness, &theSealHarness} {
		if o.harness != nil {
			close(o.harness.calls)
			o.harness.Close()
			runtime.Gosched()
		}
	}
	os.Exit(code)
}
