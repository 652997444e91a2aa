package cni

import (
	"fmt"
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/endpoint/endpointtest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pinDir is a directory on a BPF file system of the test's own mount namespace.
func pinDir(t testing.TB) string {
	dir := t.TempDir()
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() { unix.Unmount(dir, 0) })
	return dir
}

// hook attaches a program of that name which lets everything pass.
func hook(t *testing.T, name string, index int, at ebpf.AttachType) link.Link {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	must(t, err)
	defer program.Close()
	l, err := link.AttachTCX(link.TCXOptions{Program: program, Interface: index, Attach: at})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// TestStatusWithoutAgent: a node whose pods go on without an agent is not called broken; any other
// is.
func TestStatusWithoutAgent(t *testing.T) {
	a := newAgent(t)
	dir := pinDir(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "wire0"
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "wire0-peer"}))
	wire, err := netlink.LinkByName("wire0")
	must(t, err)
	t.Cleanup(func() { netlink.LinkDel(wire) })
	status := func() *types.Error {
		_, fail := a.run("STATUS", "", "", a.conf("1.1.0", fmt.Sprintf(`"bpf":%q`, dir)))
		return fail
	}
	a.stop()
	t.Cleanup(a.start)
	if fail := status(); fail == nil || fail.Code != types.ErrPluginNotAvailable {
		t.Errorf("nothing is pinned: %v", fail)
	}
	config, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4,
		MaxEntries: 1})
	must(t, err)
	defer config.Close()
	must(t, config.Pin(dir+"/maps-weft_config-0-1"))
	must(t,
		hook(t, "weft_from_wire", wire.Attrs().Index,
			ebpf.AttachTCXIngress).Pin(dir+"/link-from_wire-tcingress-wire0"))
	if fail := status(); fail == nil || fail.Code != types.ErrPluginNotAvailable {
		t.Errorf("half of the hooks: %v", fail)
	}
	must(t,
		hook(t, "weft_to_wire", wire.Attrs().Index,
			ebpf.AttachTCXEgress).Pin(dir+"/link-to_wire-tcegress-wire0"))
	if fail := status(); fail != nil {
		t.Errorf("the datapath works: %v", fail)
	}
	must(t, netlink.LinkDel(wire))
	if fail := status(); fail == nil || fail.Code != types.ErrPluginNotAvailable {
		t.Errorf("the uplink is gone: %v", fail)
	}
}

// TestFailedChainedAdd: an interface that another plugin has set up is set down when it gets no
// hooks.
func TestFailedChainedAdd(t *testing.T) {
	for _, hooked := range []bool{false, true} {
		t.Run(fmt.Sprintf("hooked %v", hooked), func(t *testing.T) {
			a := newAgent(t)
			netns, pod := endpointtest.NewPod(t)
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "veth0"
			must(t,
				netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0",
					PeerNamespace: netlink.NsFd(int(pod.Fd()))}))
			outer, err := netlink.LinkByName("veth0")
			must(t, err)
			t.Cleanup(func() { netlink.LinkDel(outer) })
			must(t, netlink.LinkSetUp(outer))
			if hooked {
				hook(t, "weft_from_pod", outer.Attrs().Index, ebpf.AttachTCXIngress)
			}
			prev := `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"` +
				netns + `"}],"ips":[{"interface":0,"address":"10.79.0.9/24"}]}`
			up := func() bool {
				l, err := net.InterfaceByName("veth0")
				must(t, err)
				return l.Flags&net.FlagUp != 0
			}
			a.stop()
			if _, fail := a.run("ADD", "c1", netns, a.conf("1.0.0", prev)); fail == nil ||
				fail.Code != types.ErrTryAgainLater {
				t.Fatalf("ADD: %v", fail)
			}
			if up() != hooked {
				t.Errorf("up %v", up())
			}
			a.start()
			if _, fail := a.run("ADD", "c1", netns, a.conf("1.0.0", prev)); fail != nil {
				t.Fatal(fail)
			}
			if !up() || len(a.dp.Attached()) != 1 {
				t.Errorf("after ADD: up %v, attached %v", up(), a.dp.Attached())
			}
			if _, fail := a.run("DEL", "c1", netns, a.conf("1.0.0", prev)); fail != nil {
				t.Error(fail)
			}
		})
	}
}
