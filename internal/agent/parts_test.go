package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/masquerade"
	"weft.dev/weft/internal/netns/nettest"
)

func TestCheckKernel(t *testing.T) {
	for release, want := range map[string]string{
		"6.18.44-fc": "", "6.6.0": "", "7.0-rc1": "", "10.1": "",
		"6.5.13-generic": "TCX links, which need Linux 6.6 or newer",
		"5.15.0":         "kernel 5.15.0 is too old",
		"strange":        "not understood", "6.": "not understood",
	} {
		err := checkKernel(release)
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", release, err)
		}
	}
}

func TestNoBPFFS(t *testing.T) {
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := ensureBPFFS(filepath.Join(base, "weft"), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "mount -t bpf bpf "+base) {
		t.Errorf("not empty: %v", err)
	}
	err = ensureBPFFS(filepath.Join(base, "none", "weft"), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "paths.bpf") {
		t.Errorf("missing: %v", err)
	}
}

func TestHideMemory(t *testing.T) {
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	if err := hideMemory(); err != nil {
		t.Fatal(err)
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 0 || err != nil {
		t.Errorf("dumpable is %d, %v", dumpable, err)
	}
}

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	held, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lock(dir)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d holds", os.Getpid())) {
		t.Errorf("second: %v", err)
	}
	if err := held.remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory stays: %v", err)
	}
	held, err = lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	held.release()
	if _, err := os.Stat(filepath.Join(dir, pidName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pid file stays: %v", err)
	}
}

func TestRemoveStateKeepsOtherInstances(t *testing.T) {
	base := t.TempDir()
	for _, file := range []string{"ipam.json", "endpoints/1.json", "lab-a/ipam.json"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(base, file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := &config.Config{Paths: config.Paths{State: base}}
	for range 2 {
		if err := removeState(cfg); err != nil {
			t.Fatal(err)
		}
	}
	entries, _ := os.ReadDir(base)
	if len(entries) != 1 || entries[0].Name() != "lab-a" {
		t.Errorf("left %v", entries)
	}
	cfg.Instance = "lab-a"
	if err := removeState(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(base, "lab-a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("instance stays: %v", err)
	}
}

func TestChooseUplinks(t *testing.T) {
	v4, v6, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.9")
	byAddr := map[netip.Addr]string{v4: "w0", v6: "w0"}
	if names, err := chooseUplinks(nil, []netip.Addr{v4, v6}, byAddr); err != nil || !slices.Equal(names, []string{"w0"}) {
		t.Errorf("%v %v", names, err)
	}
	if names, err := chooseUplinks([]string{"eth9"}, []netip.Addr{other}, byAddr); err != nil || !slices.Equal(names, []string{"eth9"}) {
		t.Errorf("%v %v", names, err)
	}
	if _, err := chooseUplinks(nil, []netip.Addr{other}, byAddr); err == nil || !strings.Contains(err.Error(), "no interface holds the node's address 192.0.2.9") {
		t.Error(err)
	}
	if _, err := chooseUplinks(nil, nil, byAddr); err == nil {
		t.Error("no addresses and no uplinks were taken")
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestWantedMasquerade(t *testing.T) {
	own := nodeObject("a", "192.0.2.1", "10.1.0.0/24")
	nodes := map[string]*v1alpha1.Node{"a": own, "b": nodeObject("b", "10.2.0.1", "10.2.0.0/24")}
	cfg := config.Default()
	if wantedMasquerade(cfg, own, []string{"w0"}, nodes) != nil {
		t.Error("masquerade without being asked")
	}
	cfg.Instance, cfg.Masquerade.Enabled, cfg.Masquerade.Except = "blue", true, prefixes("10.1.0.0/16", "fd00::/8")
	got := wantedMasquerade(cfg, own, []string{"w0"}, nodes)
	want := &masquerade.Options{
		Instance: "blue", Uplinks: []string{"w0"}, PodCIDRs: prefixes("10.1.0.0/24"),
		Except: prefixes("10.1.0.0/16", "10.1.0.0/24", "10.2.0.0/24", "10.2.0.1/32", "192.0.2.1/32", "fd00::/8"),
	}
	if !got.Equal(want) {
		t.Errorf("%+v", got)
	}
}

func TestOutwardInterfaces(t *testing.T) {
	nettest.Do(t, nettest.New(t, "agent"), func() error {
		if names, err := outwardInterfaces([]string{"wire0"}); err != nil || !slices.Equal(names, []string{"wire0"}) {
			t.Errorf("no default route: %v %v", names, err)
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "out0"
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "out1"}); err != nil {
			return err
		}
		link, err := netlink.LinkByName("out0")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}); err != nil {
			return err
		}
		names, err := outwardInterfaces([]string{"wire0"})
		if !slices.Equal(names, []string{"out0", "wire0"}) {
			t.Errorf("with a default route: %v", names)
		}
		return err
	})
}

func TestLogTail(t *testing.T) {
	tail := &LogTail{}
	for i := range tailLines + 2 {
		fmt.Fprintf(tail, "line %d\n", i)
	}
	lines := tail.Lines()
	if len(lines) != tailLines || lines[0] != "line 2" || lines[tailLines-1] != fmt.Sprintf("line %d", tailLines+1) {
		t.Errorf("%d lines, %s to %s", len(lines), lines[0], lines[len(lines)-1])
	}
	if (*LogTail)(nil).Lines() != nil {
		t.Error("no tail has lines")
	}
}
