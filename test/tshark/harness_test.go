package tshark

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// end is one of the two nodes.
type end struct {
	ns         string
	addr4      netip.Prefix
	addr6      netip.Prefix
	pods       []netip.Prefix
	pod4, pod6 netip.Addr
}

func (e *end) do(t *testing.T, what string, fn func() error) {
	t.Helper()
	if err := netns.Do(e.ns, fn); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// ends are two nodes without namespaces.
func ends() (a, b *end) {
	ends := [2]*end{}
	for i := range ends {
		ends[i] = &end{
			addr4: netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)),
			addr6: netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1)),
			pods: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.77.%d.0/24", i+1)),
				netip.MustParsePrefix(fmt.Sprintf("fd77:%d::/64", i+1))},
			pod4: netip.MustParseAddr(fmt.Sprintf("10.77.%d.100", i+1)),
			pod6: netip.MustParseAddr(fmt.Sprintf("fd77:%d::100", i+1)),
		}
	}
	return ends[0], ends[1]
}

// nodes makes two namespaces, joined by the wire w0.
func nodes(t *testing.T) (a, b *end) {
	t.Helper()
	a, b = ends()
	ends := [2]*end{a, b}
	for i, e := range ends {
		e.ns = nettest.New(t, fmt.Sprintf("tshark-%d", i))
	}
	nettest.Wire(t, ends[0].wire(100), ends[1].wire(0))
	macs := [2]net.HardwareAddr{}
	for i, e := range ends {
		e.do(t, "look at the wire", func() (err error) { macs[i], err = macOf("w0"); return err })
	}
	for i, e := range ends {
		e.do(t, "neighbours",
			func() error {
				return neighbours(macs[1-i], ends[1-i].addr4.Addr(),
					ends[1-i].addr6.Addr())
			})
	}
	return a, b
}

func (e *end) wire(index int) nettest.End {
	return nettest.End{NetNS: e.ns, Name: "w0", Index: index,
		Addrs: []string{e.addr4.String(), e.addr6.String()}}
}

func macOf(name string) (net.HardwareAddr, error) {
	l, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	return l.HardwareAddr, nil
}

func neighbours(mac net.HardwareAddr, addrs ...netip.Addr) error {
	w0, err := netlink.LinkByName("w0")
	if err != nil {
		return err
	}
	for _, a := range addrs {
		n := &netlink.Neigh{LinkIndex: w0.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: a.AsSlice(), HardwareAddr: mac}
		if err := netlink.NeighSet(n); err != nil {
			return err
		}
	}
	return nil
}

// lane is a key that the test knows.
type lane struct{ key, salt []byte }

// seals opens a datapath on a that seals for b with the test's keys.
func seals(t *testing.T, a, b *end) []lane {
	t.Helper()
	name := fmt.Sprintf("wt-tshark-%d", os.Getpid())
	bpf, state := filepath.Join("/sys/fs/bpf", name), filepath.Join(t.TempDir(), "state")
	var dp *datapath.Datapath
	t.Cleanup(func() {
		if dp != nil {
			dp.Close()
		}
		if err := netns.Do(a.ns,
			func() error {
				return datapath.Cleanup(bpf, state,
					slog.New(slog.DiscardHandler))
			}); err != nil {
			t.Error(err)
		}
	})
	a.do(t, "open datapath", func() (err error) {
		dp, err = datapath.Open(datapath.Options{
			BPFDir: bpf, StateDir: state, Mode: datapath.ModeTC, Uplinks: []string{"w0"},
			HostAddrs: []netip.Addr{a.addr4.Addr(), a.addr6.Addr()},
			PodCIDRs:  a.pods, FlowEntries: 4096, EventsPerSecond: 1000,
			Log: slog.New(slog.DiscardHandler),
			Encrypt: &esp.Options{Engine: "bpf", AllowTableAES: true,
				Port: encryptcheck.DefaultPort},
		})
		return err
	})
	peer := datapath.Node{Name: "b", Addresses: []netip.Addr{b.addr4.Addr(), b.addr6.Addr()},
		PodCIDRs: b.pods}
	a.do(t, "introduce the peer",
		func() error { return dp.SetNodes(t.Context(), []datapath.Node{peer}) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- netns.Do(a.ns, func() error { return dp.Run(ctx) }) }()
	t.Cleanup(func() { cancel(); <-done })
	sas, err := dp.Associations()
	if err != nil {
		t.Fatal(err)
	}
	lanes := make([]lane, sas.Lanes())
	for i := range lanes {
		sa := esp.SA{Node: "b", Out: true, Epoch: epoch, Lane: uint8(i), ID: 1, Number: epoch,
			Expires: time.Now().Add(time.Hour)}
		_, _ = rand.Read(sa.Key[:]) // never fails
		_, _ = rand.Read(sa.Salt[:])
		lanes[i] = lane{bytes.Clone(sa.Key[:]), bytes.Clone(sa.Salt[:])}
		if err := sas.InstallSA(&sa); err != nil {
			t.Fatal(err)
		}
	}
	if err := sas.SealWith("b", epoch); err != nil {
		t.Fatal(err)
	}
	return lanes
}
