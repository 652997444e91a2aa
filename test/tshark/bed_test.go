package tshark

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/netns"
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

// nodes makes two namespaces, joined by the wire w0.
func nodes(t *testing.T) (a, b *end) {
	t.Helper()
	ends := [2]*end{}
	for i := range ends {
		name := fmt.Sprintf("wt-tshark-%d-%d", os.Getpid(), i)
		path, err := netns.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { netns.Delete(name) })
		ends[i] = &end{
			ns:    path,
			addr4: netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)), addr6: netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1)),
			pods: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.77.%d.0/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd77:%d::/64", i+1))},
			pod4: netip.MustParseAddr(fmt.Sprintf("10.77.%d.100", i+1)), pod6: netip.MustParseAddr(fmt.Sprintf("fd77:%d::100", i+1)),
		}
	}
	peer, err := os.Open(ends[1].ns)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	ends[0].do(t, "make the wire", func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "w0", Index: 100}, PeerName: "w0", PeerNamespace: netlink.NsFd(int(peer.Fd()))})
	})
	macs := [2]net.HardwareAddr{}
	for i, e := range ends {
		e.do(t, "raise the wire", func() (err error) { macs[i], err = e.raise(); return err })
	}
	for i, e := range ends {
		e.do(t, "neighbours", func() error { return neighbours(macs[1-i], ends[1-i].addr4.Addr(), ends[1-i].addr6.Addr()) })
	}
	return ends[0], ends[1]
}

func (e *end) raise() (net.HardwareAddr, error) {
	w0, err := netlink.LinkByName("w0")
	if err != nil {
		return nil, err
	}
	for _, p := range []netip.Prefix{e.addr4, e.addr6} {
		addr, err := netlink.ParseAddr(p.String())
		if err != nil {
			return nil, err
		}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(w0, addr); err != nil {
			return nil, err
		}
	}
	return w0.Attrs().HardwareAddr, netlink.LinkSetUp(w0)
}

func neighbours(mac net.HardwareAddr, addrs ...netip.Addr) error {
	w0, err := netlink.LinkByName("w0")
	if err != nil {
		return err
	}
	for _, a := range addrs {
		n := &netlink.Neigh{LinkIndex: w0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
		if err := netlink.NeighSet(n); err != nil {
			return err
		}
	}
	for range 300 { // until there is a carrier
		if w0, err = netlink.LinkByName("w0"); err != nil || w0.Attrs().OperState == netlink.OperUp {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("w0 has no carrier")
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
		if err := netns.Do(a.ns, func() error { return datapath.Cleanup(bpf, state, slog.New(slog.DiscardHandler)) }); err != nil {
			t.Error(err)
		}
	})
	a.do(t, "open datapath", func() (err error) {
		dp, err = datapath.Open(datapath.Options{
			BPFDir: bpf, StateDir: state, Mode: datapath.ModeTC, Uplinks: []string{"w0"}, HostAddrs: []netip.Addr{a.addr4.Addr(), a.addr6.Addr()},
			PodCIDRs: a.pods, FlowEntries: 4096, EventsPerSecond: 1000, Log: slog.New(slog.DiscardHandler),
			Encrypt: &datapath.EncryptOptions{Engine: "bpf", AllowTableAES: true, Port: encryptcheck.DefaultPort},
		})
		return err
	})
	peer := datapath.Node{Name: "b", Addresses: []netip.Addr{b.addr4.Addr(), b.addr6.Addr()}, PodCIDRs: b.pods}
	a.do(t, "introduce the peer", func() error { return dp.SetNodes(t.Context(), []datapath.Node{peer}) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- netns.Do(a.ns, func() error { return dp.Run(ctx) }) }()
	t.Cleanup(func() { cancel(); <-done })
	lanes := make([]lane, dp.Lanes())
	for i := range lanes {
		sa := datapath.SA{Node: "b", Out: true, Epoch: epoch, Lane: uint8(i), ID: 1, Number: epoch, Expires: time.Now().Add(time.Hour)}
		_, _ = rand.Read(sa.Key[:]) // never fails
		_, _ = rand.Read(sa.Salt[:])
		lanes[i] = lane{bytes.Clone(sa.Key[:]), bytes.Clone(sa.Salt[:])}
		if err := dp.InstallSA(&sa); err != nil {
			t.Fatal(err)
		}
	}
	if err := dp.SealWith("b", epoch); err != nil {
		t.Fatal(err)
	}
	return lanes
}
