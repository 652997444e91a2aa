package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/endpoint/endpointtest"
	weftns "weft.dev/weft/internal/netns"
)

// sealing gives the agent a real datapath that seals, on an uplink.
func (a *agent) sealing(mode datapath.Mode) *datapath.Datapath {
	a.t.Helper()
	bpffs := pinDir(a.t)
	uplink := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtup0"}, PeerName: "wtup0p"}
	if err := errors.Join(netlink.LinkAdd(uplink), addAddress("wtup0", "192.0.2.1/24"),
		netlink.LinkSetUp(uplink)); err != nil {
		a.t.Fatal(err)
	}
	opt := datapath.Options{
		BPFDir: bpffs + "/weft", StateDir: a.t.TempDir(), Mode: mode, Uplinks: []string{"wtup0"},
		HostAddrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.79.0.0/24"),
			netip.MustParsePrefix("fd79::/64")},
		FlowEntries: 4096, EventsPerSecond: 1000, Log: slog.New(slog.DiscardHandler),
		Encrypt: &esp.Options{Engine: "bpf", AllowTableAES: true, Port: encryptcheck.DefaultPort},
	}
	dp, err := datapath.Open(opt)
	if err != nil {
		a.t.Fatal(err)
	}
	a.stop()
	a.opt.Datapath = dp
	a.start()
	a.t.Cleanup(func() {
		if err := errors.Join(dp.Close(), datapath.Cleanup(opt.BPFDir, opt.StateDir, opt.Log),
			netlink.LinkDel(uplink)); err != nil {
			a.t.Error(err)
		}
	})
	return dp
}

func addAddress(link string, addr string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	parsed.Flags = unix.IFA_F_NODAD
	return netlink.AddrAdd(l, parsed)
}

// meets has a connection made from one namespace to an address of another's, which may still be
// tentative.
func meets(from, to string, addr netip.Addr) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if err := connect(from, to, addr); !errors.Is(err, unix.EADDRNOTAVAIL) ||
			time.Now().After(deadline) {
			return err
		}
	}
}

func connect(from, to string, addr netip.Addr) error {
	var l net.Listener
	var err error
	inNS := func(ns string, fn func()) error {
		if ns == "" {
			fn()
			return nil
		}
		return weftns.Do(ns, func() error { fn(); return nil })
	}
	if e := inNS(to, func() {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp",
			netip.AddrPortFrom(addr, 0).String())
	}); e != nil || err != nil {
		return errors.Join(e, err)
	}
	defer l.Close()
	if e := inNS(from, func() {
		var c net.Conn
		if c, err = (&net.Dialer{Timeout: 30 * time.Second}).Dial("tcp",
			l.Addr().String()); err == nil {
			c.Close()
		}
	}); e != nil || err != nil {
		return errors.Join(e, err)
	}
	return nil
}

// TestChainedPodsMeetTheirNodeSealed: with encryption on, a pod that another plugin connected and
// its node reach each other by their bridge or veth, also after the bridge was made anew. Where
// they could not, ADD says so.
func TestChainedPodsMeetTheirNodeSealed(t *testing.T) {
	for name, tc := range map[string]struct {
		plugin  string
		prepare func() error // before ADD
		remake  func(info endpoint.Info) error
		mode    datapath.Mode
		refused string
		// Without br_netfilter the tag alone says, behind the bridge, who sent a packet.
		noNetfilter bool
		after       func(info endpoint.Info) // ADD
		devices     []string
	}{
		"bridge": {
			plugin:  `{"type":"bridge","bridge":"wtbr0","isGateway":true,%s}`,
			remake:  func(info endpoint.Info) error { return moveToBridge(info, "wtbr0", "wtbr1") },
			devices: []string{"wtbr0", "wtbr1"},
		},
		"bridge without netfilter, beside another's program": {
			plugin:      `{"type":"bridge","bridge":"wtbr0","isGateway":true,%s}`,
			noNetfilter: true,
			after:       func(info endpoint.Info) { acceptAll(t, info.HostIf) },
			devices:     []string{"wtbr0"},
		},
		"bridge without netfilter, mode xdp": {
			plugin: `{"type":"bridge","bridge":"wtbr0","isGateway":true,%s}`,
			mode:   datapath.ModeXDP, noNetfilter: true, devices: []string{"wtbr0"},
		},
		// As the plugin does for a VLAN, which not every kernel's bridges know.
		"bridge with its gateway on a veth": {
			plugin: `{"type":"bridge","bridge":"wtbr0",%s}`,
			prepare: func() error {
				if err := addBridge("wtbr0"); err != nil {
					return err
				}
				return errors.Join(addPort("wtgw", "wtbr0"), addAddress("wtgw", "10.79.0.1/24"),
					addAddress("wtgw", "fd79::1/64"))
			},
			refused: "the gateway of veth",
			devices: []string{"wtgw", "wtbr0"},
		},
		"ptp": {plugin: `{"type":"ptp",%s}`},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t)
			a.build(cnitoolPkg, pluginsPkg+"main/bridge", pluginsPkg+"main/ptp",
				pluginsPkg+"ipam/host-local")
			dp := a.sealing(tc.mode)
			t.Cleanup(func() {
				for _, name := range tc.devices {
					if l, err := netlink.LinkByName(name); err == nil {
						netlink.LinkDel(l)
					}
				}
			})
			setBridgeNetfilter(t, !tc.noNetfilter)
			if tc.prepare != nil {
				if err := tc.prepare(); err != nil {
					t.Fatal(err)
				}
			}
			netns, _ := endpointtest.NewPod(t)
			ipam := fmt.Sprintf(`"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.79.0.0/24"}],[{"subnet":"fd79::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`, t.TempDir())
			dir := a.conflist("1.0.0", fmt.Sprintf(tc.plugin, ipam), a.self())
			defer a.mustCnitool(dir, "del", netns)
			if out, err := a.cnitool(dir, "add", netns); err != nil || tc.refused != "" {
				if err == nil || tc.refused == "" || !strings.Contains(err.Error(), tc.refused) {
					t.Errorf("ADD: %s %v, want error %q", out, err, tc.refused)
				}
				return
			}
			info, _ := a.Get("shop/web")
			if tc.after != nil {
				tc.after(info)
			}
			a.meetBothWays(t, "after ADD", netns, info, dp)
			a.mustCnitool(dir, "check", netns)
			if tc.remake == nil {
				return
			}
			if err := tc.remake(info); err != nil {
				t.Fatal(err)
			}
			check := endpoint.CheckRequest{Attachment: endpoint.Attachment{ContainerID: info.ContainerID, IfName: "eth0"}, NetNS: netns}
			if err := a.Check(context.Background(), check); !errors.Is(err,
				endpoint.ErrUnhealthy) || !strings.Contains(err.Error(), "in the maps") {
				t.Errorf("CHECK while the maps lead to the former bridge: %v", err)
			}
			if err := a.Mend(context.Background()); err != nil {
				t.Fatal(err)
			}
			a.meetBothWays(t, "after the bridge was made anew", netns, info, dp)
			if err := a.Check(context.Background(), check); err != nil {
				t.Errorf("CHECK after the mend: %v", err)
			}
		})
	}
}

func (a *agent) meetBothWays(t *testing.T, when, netns string, info endpoint.Info,
	dp *datapath.Datapath) {
	t.Helper()
	// First to the gateway, whose address may be tentative: the node would send from a link-local
	// one meanwhile.
	for _, addr := range []string{"10.79.0.1", "fd79::1", "192.0.2.1"} {
		if err := meets(netns, "", netip.MustParseAddr(addr)); err != nil {
			t.Errorf("%s, the pod to the node: %v", when, err)
		}
	}
	for _, addr := range info.Addresses() {
		if err := meets("", netns, addr); err != nil {
			t.Errorf("%s, the node to the pod: %v", when, err)
		}
	}
	counters, err := dp.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range counters {
		if c.Reason != "" && c.Reason != "none" {
			t.Errorf("%s dropped: %+v", when, c)
		}
	}
}

// setBridgeNetfilter has bridged packets pass netfilter, as Kubernetes does.
func setBridgeNetfilter(t *testing.T, on bool) {
	t.Helper()
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		err := os.WriteFile("/proc/sys/net/bridge/"+name,
			[]byte(map[bool]string{true: "1", false: "0"}[on]), 0)
		if err != nil && (on || !errors.Is(err, os.ErrNotExist)) {
			t.Skip("br_netfilter is not in this kernel: ", err)
		}
	}
}

// acceptAll attaches a program behind Weft's that ends the chain with TC_ACT_OK, as many observers
// do.
func acceptAll(t *testing.T, hostIf string) {
	t.Helper()
	l, err := netlink.LinkByName(hostIf)
	must(t, err)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "accept", Type: ebpf.SchedCLS,
		License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	must(t, err)
	defer program.Close()
	attached, err := link.AttachTCX(link.TCXOptions{Program: program, Interface: l.Attrs().Index,
		Attach: ebpf.AttachTCXIngress})
	must(t, err)
	t.Cleanup(func() { attached.Close() })
}

func addBridge(name string) error {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	return errors.Join(netlink.LinkAdd(br), netlink.LinkSetUp(br))
}

// addPort makes a veth whose other end is a port of the bridge.
func addPort(name, bridge string) error {
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return err
	}
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	if err := netlink.LinkAdd(v); err != nil {
		return err
	}
	peer, err := netlink.LinkByName(name + "p")
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetMaster(peer, br), netlink.LinkSetUp(peer),
		netlink.LinkSetUp(v))
}

// moveToBridge makes the pod's interface a port of a new bridge that has the addresses of the old
// one.
func moveToBridge(info endpoint.Info, from, to string) error {
	was, err := netlink.LinkByName(from)
	if err != nil {
		return err
	}
	mac := was.Attrs().HardwareAddr
	if err := errors.Join(netlink.LinkDel(was), addBridge(to)); err != nil {
		return err
	}
	br, err := netlink.LinkByName(to)
	if err != nil {
		return err
	}
	port, err := netlink.LinkByName(info.HostIf)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetMaster(port, br), netlink.LinkSetHardwareAddr(br, mac),
		addAddress(to, "10.79.0.1/24"), addAddress(to, "fd79::1/64"))
}
