// Package startup finds out about the host what an agent must know before it touches anything: that
// it is the instance's only one, that the kernel and bpffs serve, and which interfaces are uplinks.
package startup

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/version"
)

// Minimum kernels: every mode attaches with TCX links (BPF_TCX_INGRESS, BPF_TCX_EGRESS), and
// sealing takes the kernel's ciphers in BPF (bpf_crypto_encrypt).
const (
	minMajor        = 6
	minMinor        = 6
	minMinorSealing = 12
)

// Preflight checks what must hold before anything is touched.
func Preflight(cfg *config.Config, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("the agent must run as root: it loads BPF programs and changes network interfaces")
	}
	if err := CheckKernel(version.Kernel(), cfg.Encryption.On()); err != nil {
		return err
	}
	if err := hideMemory(); err != nil {
		return err
	}
	return ensureBPFFS(cfg.Paths.BPF, log)
}

// hideMemory keeps keys out of core files and from other processes of the same user: no
// dumps, no ptrace without CAP_SYS_PTRACE.
func hideMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make this process undumpable: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("switch core files off: %w", err)
	}
	return nil
}

// CheckKernel refuses a kernel that lacks what every mode needs, or what sealing does.
func CheckKernel(release string, sealing bool) error {
	major, minor, err := parseRelease(release)
	if err != nil {
		return err
	}
	newer := func(than int) bool { return major > minMajor || major == minMajor && minor >= than }
	switch {
	case !newer(minMinor):
		return fmt.Errorf("kernel %s is too old: Weft attaches its programs with TCX links, which need Linux %d.%d or newer", release, minMajor, minMinor)
	case sealing && !newer(minMinorSealing):
		return fmt.Errorf("kernel %s is too old for encryption: BPF has the kernel's ciphers from Linux %d.%d on; without them only encryption.mode: \"off\" works", release, minMajor, minMinorSealing)
	}
	return nil
}

func parseRelease(release string) (int, int, error) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return 0, 0, fmt.Errorf("kernel release %q is not understood", release)
	}
	digits := func(text string) string {
		end := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			return text
		}
		return text[:end]
	}
	major, err1 := strconv.Atoi(digits(parts[0]))
	minor, err2 := strconv.Atoi(digits(parts[1]))
	if err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("kernel release %q is not understood", release)
	}
	return major, minor, nil
}

// ensureBPFFS makes sure that base, where the pins go, is on a bpffs. A machine without
// systemd has none mounted: then one is mounted on base's parent, if nothing is there.
func ensureBPFFS(base string, log *slog.Logger) error {
	on, err := OnBPFFS(base)
	if err != nil {
		return err
	}
	if on {
		return nil
	}
	mountpoint := filepath.Dir(base)
	hint := fmt.Sprintf("mount one with `mount -t bpf bpf %s`, or set paths.bpf to a directory on a bpffs", mountpoint)
	entries, err := os.ReadDir(mountpoint)
	if err != nil {
		return fmt.Errorf("%s is not on a bpffs and its parent cannot be read: %w; %s", base, err,
			hint)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not on a bpffs, and %s is not empty, so none is mounted there: %s",
			base, mountpoint, hint)
	}
	if err := unix.Mount("bpf", mountpoint, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("%s is not on a bpffs and mounting one on %s failed: %w; %s", base,
			mountpoint, err, hint)
	}
	log.Info("no bpffs was mounted: mounted one", "on", mountpoint)
	return nil
}

// OnBPFFS says whether path is on a bpffs, or would be.
func OnBPFFS(path string) (bool, error) {
	stat, err := Statfs(path)
	if err != nil {
		return false, fmt.Errorf("look for a bpffs at %s: %w", path, err)
	}
	return stat.Type == unix.BPF_FS_MAGIC, nil
}

// Statfs tells of the file system of path or, where that does not exist yet, of the nearest parent
// that does.
func Statfs(path string) (stat unix.Statfs_t, err error) {
	for {
		err = unix.Statfs(path, &stat)
		if !errors.Is(err, unix.ENOENT) || path == "/" || path == "." {
			return stat, err
		}
		path = filepath.Dir(path)
	}
}
