package preflight

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/sealer/fit"
	"weft.dev/weft/internal/startup"
)

func ok(found string, values ...any) Check {
	return Check{State: OK, Found: fmt.Sprintf(found, values...)}
}

func warned(do, found string, values ...any) Check {
	return Check{State: Warn, Found: fmt.Sprintf(found, values...), Do: do}
}

func failed(do, found string, values ...any) Check {
	return Check{State: Fail, Found: fmt.Sprintf(found, values...), Do: do}
}

func (l *look) root() Check {
	if l.UID() != 0 {
		return failed("run it as root, or what follows is not what the agent would find",
			"uid %d", l.UID())
	}
	return ok("uid 0")
}

func (l *look) kernel() Check {
	release := l.Kernel()
	if err := startup.CheckKernel(release, l.cfg.Encryption.On()); err != nil {
		return failed("install a newer kernel (Debian 12: from backports)", "%v", err)
	}
	return ok("%s", release)
}

const btfFile = "/sys/kernel/btf/vmlinux"

func (l *look) btf() Check {
	if _, err := l.Stat(btfFile); err != nil {
		return failed("install a kernel that was built with CONFIG_DEBUG_INFO_BTF, as the distributions' are",
			"%s is not there: the programs' kernel functions cannot be resolved", btfFile)
	}
	return ok("%s", btfFile)
}

func (l *look) bpffs() Check {
	base := l.cfg.Paths.BPF
	on, err := l.OnBPFFS(base)
	mount := "mount one: mount -t bpf bpf " + filepath.Dir(base)
	switch {
	case err != nil:
		return failed(mount, "%v", err)
	case !on:
		return failed(mount+"; systemd does so at boot, unless it is masked",
			"%s is not on a bpffs", base)
	}
	return ok("%s is on a bpffs", base)
}

// lockdown in confidentiality keeps programs from reading kernel memory; in integrity, modules
// without a signature out.
func (l *look) lockdown() Check {
	const file = "/sys/kernel/security/lockdown"
	text, err := l.ReadFile(file)
	if err != nil {
		return ok("not in force: no %s", file)
	}
	_, mode, _ := strings.Cut(string(text), "[")
	mode, _, _ = strings.Cut(mode, "]")
	switch mode {
	case "confidentiality":
		return warned("boot with lockdown=integrity, if resumed virtual machines matter (docs/keys.md)",
			"confidentiality: no program may trace the kernel, so resumed snapshots are noticed later")
	case "integrity":
		return ok("integrity: the module for engine kmod must be signed, all else works")
	}
	return ok("%s", mode)
}

// capability is one of those that the package's unit gives the agent.
type capability struct {
	bit  int
	name string
	// without is what does not work: empty if nothing does.
	without string
}

var capabilities = []capability{
	{12, "CAP_NET_ADMIN", ""},
	{21, "CAP_SYS_ADMIN", ""},
	{38, "CAP_PERFMON", ""},
	{39, "CAP_BPF", ""},
	{13, "CAP_NET_RAW", "the search for narrow paths"},
	{14, "CAP_IPC_LOCK", "keys in memory that is never swapped out"},
	{19, "CAP_SYS_PTRACE", "pods whose runtime names their namespace by /proc/PID"},
	{24, "CAP_SYS_RESOURCE", "a sealer whose whole memory is locked"},
}

func (l *look) capabilities() Check {
	text, err := l.ReadFile("/proc/self/status")
	if err != nil {
		return failed("mount /proc", "%v", err)
	}
	_, mask, _ := strings.Cut(string(text), "CapEff:")
	mask, _, _ = strings.Cut(mask, "\n")
	bits, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
	if err != nil {
		return failed("run a kernel that tells them",
			"/proc/self/status names no effective capabilities")
	}
	var lacking, without []string
	for _, c := range capabilities {
		if bits&(1<<c.bit) != 0 {
			continue
		}
		lacking = append(lacking, c.name)
		if c.without == "" {
			return failed("run the agent on the host, or in a container that is privileged",
				"missing: %s", c.name)
		}
		without = append(without, c.without)
	}
	if lacking != nil {
		return warned("give them, unless that may be missing: "+strings.Join(without, ", "),
			"missing: %s", strings.Join(lacking, ", "))
	}
	return ok("all that it needs")
}

// programs also learns what aes tells.
func (l *look) programs() Check {
	engine, err := l.Datapath(l.cfg)
	l.engine, l.engineErr = engine, err
	var refused *EngineError
	if err != nil && !errors.As(err, &refused) {
		return failed("if it runs in a container or under lockdown, have BPF allowed; else install a newer kernel",
			"%v", err)
	}
	return ok("the kernel takes them")
}

// EngineError says that the programs load, and no engine seals.
type EngineError struct{ Err error }

func (e *EngineError) Error() string { return e.Err.Error() }
func (e *EngineError) Unwrap() error { return e.Err }

func (l *look) aes() Check {
	var refused *EngineError
	switch {
	case errors.As(l.engineErr, &refused) && errors.Is(refused, esp.ErrTableAES):
		return failed("modprobe aesni-intel, or aes_ti (docs/encryption.md, which AES)", "%v",
			refused)
	case errors.As(l.engineErr, &refused):
		return failed(`set engine bpf or auto on a kernel that has it, or encryption.mode: "off"`,
			"%v", refused)
	case l.engineErr != nil:
		return failed("see programs", "not tried, since the programs were refused")
	case l.engine.AES.Driver == "":
		return ok("engine %s", l.engine.Active)
	case !l.engine.AES.ConstantTime:
		return warned("modprobe aesni-intel, or aes_ti, and unset encryption.allowTableAES",
			"engine %s with %s, whose time depends on the key", l.engine.Active,
			l.engine.AES.Driver)
	}
	return ok("engine %s with %s, constant time", l.engine.Active, l.engine.AES.Driver)
}

// least is what the agent's records and its audit log need.
const least = 256 << 20

func (l *look) disk() Check {
	free, err := l.Free(l.cfg.StateDir())
	switch {
	case err != nil:
		return failed("make it, or correct paths.state", "%v", err)
	case free < least:
		return warned("make room, or set keys.audit.maxSize and keep lower",
			"%d MiB free for %s", free>>20, l.cfg.StateDir())
	}
	return ok("%d MiB free for %s", free>>20, l.cfg.StateDir())
}

func (l *look) lsm() Check {
	enforce, err := l.ReadFile("/sys/fs/selinux/enforce")
	if err == nil && strings.TrimSpace(string(enforce)) == "1" {
		return warned("see ausearch -m avc if something is refused: Weft brings no policy of its own",
			"SELinux enforces its policy")
	}
	enabled, noAppArmor := l.ReadFile("/sys/module/apparmor/parameters/enabled")
	if noAppArmor == nil && strings.HasPrefix(string(enabled), "Y") {
		profile, _ := l.ReadFile("/proc/self/attr/current")
		label := strings.TrimRight(string(profile), "\n\x00")
		if label != "unconfined" && label != "" {
			return warned("run it unconfined, or see the kernel's log if something is refused",
				"AppArmor confines this process: %s", label)
		}
		return ok("AppArmor, which does not confine this process")
	}
	if err == nil {
		return ok("SELinux is permissive")
	}
	return ok("neither SELinux nor AppArmor")
}

func (l *look) sealer() Check {
	if l.cfg.Encryption.Engine == config.EngineAuto {
		reason := cmp.Or(l.engine.NoSealer, fit.Reason(l.cfg, l.Host))
		if reason != "" {
			return ok("none runs, the hooks seal what comes in bulk: %s", reason)
		}
	}
	path, err := l.Sealer()
	if err != nil {
		return failed("install the package again", "%v", err)
	}
	info, err := l.Stat(path)
	if err != nil {
		return failed("install the package again", "%v", err)
	}
	if owner, known := ownerOf(info); known && owner != 0 || info.Mode()&0o022 != 0 {
		return failed("chown root:root and chmod 755 it, after a look at who changed it",
			"%s can be changed by others than root (uid %d, mode %v)", path, owner,
			info.Mode().Perm())
	}
	return ok("%s", path)
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
