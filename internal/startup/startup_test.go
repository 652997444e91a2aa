package startup

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheckKernel(t *testing.T) {
	const old = "TCX links, which need Linux 6.6 or newer"
	const noCiphers = "too old for encryption: BPF has the kernel's ciphers from Linux 6.12 on"
	for _, row := range []struct{ release, plain, sealing string }{
		{"6.18.44-fc", "", ""},
		{"6.12.0", "", ""},
		{"7.0-rc1", "", ""},
		{"10.1", "", ""},
		{"6.11.9", "", noCiphers},
		{"6.6.0", "", noCiphers},
		{"6.5.13-generic", old, old},
		{"5.15.0", "kernel 5.15.0 is too old", old},
		{"strange", "not understood", "not understood"},
		{"6.", "not understood", "not understood"},
	} {
		for sealing, want := range map[bool]string{false: row.plain, true: row.sealing} {
			err := CheckKernel(row.release, sealing)
			if (err == nil) != (want == "") ||
				(err != nil && !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, sealing %v: %v", row.release, sealing, err)
			}
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
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); dumpable != 0 ||
		err != nil {
		t.Errorf("dumpable is %d, %v", dumpable, err)
	}
}

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	held, err := TakeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = TakeLock(dir)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d holds", os.Getpid())) {
		t.Errorf("second: %v", err)
	}
	if pid := Running(dir); pid != os.Getpid() {
		t.Errorf("pid %d holds it", pid)
	}
	if err := held.Remove(); err != nil {
		t.Error(err)
	}
	if pid := Running(dir); pid != 0 {
		t.Errorf("pid %d holds what is gone", pid)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory stays: %v", err)
	}
	held, err = TakeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	held.Release()
	if pid := Running(dir); pid != 0 {
		t.Errorf("pid %d holds what was released", pid)
	}
	if _, err := os.Stat(filepath.Join(dir, pidName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pid file stays: %v", err)
	}
}

func TestChooseUplinks(t *testing.T) {
	v4, v6, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.9")
	byAddr := map[netip.Addr]string{v4: "w0", v6: "w0"}
	if names, err := chooseUplinks(nil, []netip.Addr{v4, v6}, byAddr); err != nil ||
		!slices.Equal(names, []string{"w0"}) {
		t.Errorf("%v %v", names, err)
	}
	if names, err := chooseUplinks([]string{"eth9"}, []netip.Addr{other}, byAddr); err != nil ||
		!slices.Equal(names, []string{"eth9"}) {
		t.Errorf("%v %v", names, err)
	}
	if _, err := chooseUplinks(nil, []netip.Addr{other}, byAddr); err == nil ||
		!strings.Contains(err.Error(), "no interface holds the node's address 192.0.2.9") {
		t.Error(err)
	}
	if _, err := chooseUplinks(nil, nil, byAddr); err == nil {
		t.Error("no addresses and no uplinks were taken")
	}
}
