package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
)

// fake is a host on which all is well, until a row of the test changes it.
type fake struct {
	uid, running             int
	release                  string
	files                    fstest.MapFS
	bpffs, ipv6, synced      bool
	free                     uint64
	engine                   esp.EngineStatus
	refused, certErr, kekErr error
	sealerErr, linksErr      error
	cpus                     int
	mtuErr, forwardErr       error
	snapshot                 *store.Snapshot
	snapshotErr              error
	chains                   []Chain
	now, built               time.Time
}

func (f *fake) UID() int                                          { return f.uid }
func (f *fake) Kernel() string                                    { return f.release }
func (f *fake) ReadFile(path string) ([]byte, error)              { return f.files.ReadFile(path[1:]) }
func (f *fake) Stat(path string) (fs.FileInfo, error)             { return f.files.Stat(path[1:]) }
func (f *fake) OnBPFFS(string) (bool, error)                      { return f.bpffs, nil }
func (f *fake) Free(string) (uint64, error)                       { return f.free, nil }
func (f *fake) Running(*config.Config) int                        { return f.running }
func (f *fake) Datapath(*config.Config) (esp.EngineStatus, error) { return f.engine, f.refused }
func (f *fake) IPv6() bool                                        { return f.ipv6 }
func (f *fake) Forward() ([]Chain, error)                         { return f.chains, f.forwardErr }
func (f *fake) Now() time.Time                                    { return f.now }
func (f *fake) Synchronised() bool                                { return f.synced }
func (f *fake) Built() time.Time                                  { return f.built }
func (f *fake) Certificate(context.Context, *config.Config) error { return f.certErr }
func (f *fake) KEK(context.Context, *config.Config) error         { return f.kekErr }
func (f *fake) CPUs() int                                         { return f.cpus }
func (f *fake) AES() bool                                         { return true }
func (f *fake) Sealer() (string, error)                           { return "/usr/libexec/weft/weft-sealer", f.sealerErr }
func (f *fake) Objects(context.Context, *config.Config) (*store.Snapshot, error) {
	return f.snapshot, f.snapshotErr
}
func (f *fake) Links(*config.Config, *v1alpha1.Node) (startup.Links, error) {
	return startup.Links{Uplinks: []string{"eth0"}, MTU: 1500}, f.linksErr
}
func (f *fake) PodMTU(*config.Config, int, *v1alpha1.Node, *store.Snapshot) (int, error) {
	return 1438, f.mtuErr
}

func (f *fake) ReadDir(path string) ([]string, error) {
	entries, err := f.files.ReadDir(path[1:])
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

func (f *fake) write(path, text string) {
	f.files[path[1:]] = &fstest.MapFile{Data: []byte(text), Mode: 0o755}
}

// sockets are lines of the kernel's list: a head, then local address and state.
func socketList(lines ...string) string {
	text := "  sl  local_address rem_address   st\n"
	for i, line := range lines {
		local, state, _ := strings.Cut(line, " ")
		text += fmt.Sprintf("%4d: %s 00000000:0000 %s 00000000:00000000\n", i, local, state)
	}
	return text
}

func wellHost() *fake {
	f := &fake{
		release: "6.12.9-amd64", files: fstest.MapFS{}, bpffs: true, ipv6: true, synced: true,
		free: 4 << 30, cpus: 2,
		engine: esp.EngineStatus{Active: "bpf",
			AES: esp.AESStatus{Driver: "aes-aesni", ConstantTime: true}},
		snapshot: store.NewSnapshot(), now: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC),
		built: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC),
	}
	f.snapshot.Nodes["a"] = &v1alpha1.Node{Spec: v1alpha1.NodeSpec{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}}}
	f.write(btfFile, "")
	f.write("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
	f.write("/proc/self/status", "Name:\tweft\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n")
	f.write("/proc/net/tcp",
		socketList("0100007F:0016 0A", "0100007F:11C7 01")) // 4551 of a connection to a peer
	f.write("/proc/net/udp", socketList("00000000:0035 07"))
	f.write("/run/containerd/containerd.sock", "")
	f.write("/etc/cni/net.d/10-weft.conflist",
		`{"name": "weft", "plugins": [{"type": "weft-cni"}]}`)
	f.write("/opt/cni/bin/weft-cni", "")
	f.write("/usr/lib/cni/loopback", "")
	f.write("/usr/libexec/weft/weft-sealer", "")
	return f
}

func nodeA() *config.Config {
	cfg := config.Default()
	cfg.Node = "a"
	return cfg
}

func TestRun(t *testing.T) {
	for name, row := range map[string]struct {
		host  func(*fake)
		cfg   func(*config.Config)
		check string
		state State
		found string // part of what is found
		do    string // part of what is to be done
	}{
		"not root": {host: func(f *fake) { f.uid = 1000 }, check: "root", state: Fail,
			found: "uid 1000"},
		"Debian 12": {host: func(f *fake) { f.release = "6.1.0-28-amd64" }, check: "kernel",
			state: Fail, found: "TCX links", do: "backports"},
		"Ubuntu 24.04": {host: func(f *fake) { f.release = "6.8.0-49-generic" }, check: "kernel",
			state: Fail, found: "too old for encryption"},
		"and plain": {host: func(f *fake) { f.release = "6.8.0-49-generic" }, cfg: plain,
			check: "kernel", state: OK},
		"no BTF": {host: func(f *fake) { delete(f.files, btfFile[1:]) }, check: "btf",
			state: Fail, do: "CONFIG_DEBUG_INFO_BTF"},
		"no bpffs": {host: func(f *fake) { f.bpffs = false }, check: "bpffs", state: Fail,
			do: "mount -t bpf bpf /sys/fs/bpf;"},
		"integrity": {host: lockedDown("none [integrity] confidentiality"), check: "lockdown",
			state: OK, found: "must be signed"},
		"confidentiality": {host: lockedDown("none integrity [confidentiality]"), check: "lockdown",
			state: Warn, found: "noticed later"},
		"a container": {host: capable("00000000a80425fb"), check: "capabilities", state: Fail,
			found: "CAP_NET_ADMIN"},
		"no rlimits": {host: capable("000001fffeffffff"), check: "capabilities", state: Warn,
			found: "CAP_SYS_RESOURCE", do: "locked"},
		"no status":       {host: capable("-"), check: "capabilities", state: Fail},
		"verifier":        {host: func(f *fake) { f.refused = errors.New("load from_pod_tc: permission denied") }, check: "programs", state: Fail, found: "from_pod_tc"},
		"and then no AES": {host: func(f *fake) { f.refused = errors.New("load from_pod_tc: permission denied") }, check: "aes", state: Fail, do: "see programs"},
		"no AES": {host: noEngine(errors.New("the kernel gives BPF no AES")), check: "aes",
			state: Fail, found: "no AES"},
		"but programs": {host: noEngine(errors.New("the kernel gives BPF no AES")),
			check: "programs", state: OK},
		"AES by tables": {host: noEngine(esp.ErrTableAES), check: "aes", state: Fail,
			do: "modprobe aesni-intel"},
		"tables allowed": {host: func(f *fake) { f.engine.AES = esp.AESStatus{Driver: "aes-generic"} }, check: "aes", state: Warn, found: "depends on the key"},
		"full disk": {host: func(f *fake) { f.free = 1 << 20 }, check: "disk", state: Warn,
			found: "1 MiB free for /var/lib/weft"},
		"SELinux": {host: func(f *fake) { f.write("/sys/fs/selinux/enforce", "1") },
			check: "lsm", state: Warn, found: "SELinux enforces"},
		"permissive": {host: func(f *fake) { f.write("/sys/fs/selinux/enforce", "0") },
			check: "lsm", state: OK, found: "permissive"},
		"AppArmor": {host: apparmor("unconfined\n"), check: "lsm", state: OK,
			found: "AppArmor"},
		"a profile": {host: apparmor("docker-default (enforce)\n"), check: "lsm", state: Warn,
			found: "docker-default (enforce)"},
		"no objects": {host: func(f *fake) { f.snapshotErr = fs.ErrNotExist },
			check: "objects", state: Fail},
		"of etcd": {cfg: inEtcd, check: "objects", state: OK,
			found: "1 nodes in /weft in etcd at unix:///run/etcd.sock, among them a"},
		"etcd away": {host: func(f *fake) { f.snapshotErr = errors.New("no answer from etcd") },
			cfg: inEtcd, check: "objects", state: Fail, found: "no answer from etcd",
			do: "docs/store-etcd.md"},
		"and no node": {host: func(f *fake) { f.snapshotErr = errors.New("no answer from etcd") },
			cfg: inEtcd, check: "uplinks", state: Fail, do: "see objects"},
		"other nodes": {host: func(f *fake) { f.snapshot.Nodes = map[string]*v1alpha1.Node{"b": {}} }, check: "objects", state: Fail, found: `none of them "a"`},
		"and no uplinks": {host: func(f *fake) { f.snapshot.Nodes = nil }, check: "uplinks",
			state: Fail, do: "see objects"},
		"and no MTU": {host: func(f *fake) { f.snapshot.Nodes = nil }, check: "mtu",
			state: Fail, do: "see uplinks"},
		"a bad object": {host: func(f *fake) { f.snapshot.Errors = []store.ObjectError{{File: "x.yaml", Msg: "is none"}} }, check: "objects", state: Fail, found: "x.yaml"},
		"no interface": {host: func(f *fake) { f.linksErr = errors.New("no interface holds 192.0.2.1") }, check: "uplinks", state: Fail, found: "192.0.2.1", do: "spec.addresses"},
		"a narrow uplink": {host: func(f *fake) { f.mtuErr = errors.New("leaves pods 500") },
			check: "mtu", state: Fail, found: "leaves pods 500"},
		"no IPv6": {host: func(f *fake) { f.ipv6 = false }, check: "ipv6", state: Warn,
			found: "fd00::/64"},
		"none needed": {host: func(f *fake) { f.ipv6, f.snapshot.Nodes["a"] = false, &v1alpha1.Node{} }, check: "ipv6", state: OK},
		"Docker's policy": {host: forward(Chain{"ip", "filter", "FORWARD", true, 6}),
			check: "firewall", state: Warn, found: "drops by default: ip filter FORWARD"},
		"rules": {host: forward(Chain{"inet", "fw", "forward", false, 1}),
			check: "firewall", state: Warn, found: "passes by the rules in inet fw forward",
			do: "mode: stack"},
		"rules in stack": {host: forward(Chain{"inet", "fw", "forward", false, 1}),
			cfg: func(c *config.Config) { c.Mode = config.ModeStack }, check: "firewall",
			state: OK},
		"an empty chain": {host: forward(Chain{"ip", "filter", "FORWARD", false, 0}),
			check: "firewall", state: OK},
		"legacy": {host: func(f *fake) { f.write("/proc/net/ip_tables_names", "nat\nfilter\n") },
			check: "firewall", state: Warn, found: "iptables-legacy"},
		"no nf_tables": {host: func(f *fake) { f.forwardErr = errors.New("not supported") },
			check: "firewall", state: Warn},
		"another IKE": {host: func(f *fake) { f.write("/proc/net/udp6", socketList("00000000000000000000000000000000:1194 07")) }, check: "ports", state: Fail, found: "UDP 4500 (encryption.port)"},
		"a listener":  {host: func(f *fake) { f.write("/proc/net/tcp", socketList("0100007F:254F 0A", "00000000:11C7 0A")) }, check: "ports", state: Fail, found: "TCP 9551 (metrics.listen), TCP 4551 (keys.listen)"},
		"that is us":  {host: func(f *fake) { f.running = 7; f.write("/proc/net/tcp", socketList("00000000:11C7 0A")) }, check: "ports", state: OK, found: "pid 7"},
		"no metrics": {cfg: func(c *config.Config) { c.Metrics.Listen = "" }, check: "ports",
			state: OK, found: "free: UDP 4500, TCP 4551"},
		"1970": {host: func(f *fake) { f.now = time.Unix(60, 0) }, check: "clock",
			state: Fail, found: "before this program was built"},
		"no NTP": {host: func(f *fake) { f.synced = false }, check: "clock", state: Warn,
			do: "chrony"},
		"no certificate": {host: func(f *fake) { f.certErr = errors.New("node.crt is not there") },
			check: "certificate", state: Fail, found: "node.crt", do: "weft ca join"},
		"no KEK": {host: func(f *fake) { f.kekErr = errors.New("unknown scheme") },
			check: "kek", state: Fail, found: "unknown scheme"},
		"no sealer": {host: func(f *fake) { f.sealerErr = os.ErrNotExist }, cfg: withUser,
			check: "sealer", state: Fail},
		"anybody's": {host: func(f *fake) { f.files["usr/libexec/weft/weft-sealer"].Mode = 0o777 },
			cfg: withUser, check: "sealer", state: Fail, found: "by others than root"},
		"anybody's, auto": {
			host:  func(f *fake) { f.files["usr/libexec/weft/weft-sealer"].Mode = 0o777 },
			check: "sealer", state: Fail, found: "by others than root"},
		"auto without": {host: func(f *fake) { f.sealerErr = errors.New("not installed") },
			check: "sealer", state: OK, found: "the hooks seal what comes in bulk: not installed"},
		"auto on one CPU": {host: func(f *fake) { f.cpus = 1 }, check: "sealer", state: OK,
			found: "one CPU"},
		"auto with the module": {host: func(f *fake) { f.engine.NoSealer = "the module" },
			check: "sealer", state: OK, found: "the module"},
		"no runtime": {host: func(f *fake) { delete(f.files, "run/containerd/containerd.sock") },
			check: "runtime", state: Warn},
		"CRI-O": {host: func(f *fake) { f.write("/run/crio/crio.sock", "") },
			check: "runtime", state: OK, found: "containerd, CRI-O"},
		"no network": {host: func(f *fake) { delete(f.files, "etc/cni/net.d/10-weft.conflist") },
			check: "cni", state: Warn, found: "no network"},
		"another first": {host: func(f *fake) {
			f.write("/etc/cni/net.d/05-calico.conflist",
				`{"plugins": [{"type": "calico"}, {"type": "portmap"}]}`)
		}, check: "cni", state: Warn,
			found: "05-calico.conflist, whose plugins are calico, portmap"},
		"not a network": {host: func(f *fake) { f.write("/etc/cni/net.d/00-readme.txt", "") },
			check: "cni", state: OK},
		"no loopback": {host: func(f *fake) { delete(f.files, "usr/lib/cni/loopback") },
			check: "cni", state: Warn, found: "loopback is missing in /opt/cni/bin"},
		"no loopback for CRI-O": {host: func(f *fake) {
			delete(f.files, "usr/lib/cni/loopback")
			delete(f.files, "run/containerd/containerd.sock")
		}, check: "cni", state: OK},
		"no plugin": {host: func(f *fake) { delete(f.files, "opt/cni/bin/weft-cni") },
			check: "cni", state: Warn, found: "weft-cni is missing"},
		"a single plugin": {host: func(f *fake) { f.write("/etc/cni/net.d/00-a.conf", `{"type": "weft-cni"}`) }, check: "cni", state: OK, found: "00-a.conf"},
	} {
		t.Run(name, func(t *testing.T) {
			host, cfg := wellHost(), nodeA()
			if row.host != nil {
				row.host(host)
			}
			if row.cfg != nil {
				row.cfg(cfg)
			}
			report := Run(t.Context(), cfg, nil, host)
			at := slices.IndexFunc(report.Checks, func(c Check) bool { return c.Name == row.check })
			if at < 0 {
				t.Fatalf("no check %s in %+v", row.check, report)
			}
			got := report.Checks[at]
			if got.State != row.state || !strings.Contains(got.Found, row.found) ||
				!strings.Contains(got.Do, row.do) {
				t.Errorf("%+v", got)
			}
			if (got.State == OK) != (got.Do == "") {
				t.Errorf("what is to be done: %q", got.Do)
			}
			if report.OK == slices.ContainsFunc(report.Checks,
				func(c Check) bool { return c.State == Fail }) {
				t.Errorf("the report is ok: %v", report.OK)
			}
		})
	}
}

// TestWell: where all is well each check says so, and nothing else; without encryption nothing is
// asked of keys.
func TestWell(t *testing.T) {
	for name, row := range map[string]struct {
		cfg  func(*config.Config)
		none []string
	}{
		"sealed":             {func(*config.Config) {}, nil},
		"by the hooks":       {withBPF, []string{"sealer"}},
		"with a sealer":      {withUser, nil},
		"without encryption": {plain, []string{"aes", "certificate", "kek", "sealer"}},
	} {
		cfg := nodeA()
		row.cfg(cfg)
		report := Run(t.Context(), cfg, nil, wellHost())
		if !report.OK || len(report.Checks) != len(checks)+1-len(row.none) {
			t.Errorf("%s: %+v", name, report)
		}
		for _, c := range report.Checks {
			if c.State != OK || c.Found == "" || slices.Contains(row.none, c.Name) {
				t.Errorf("%s: %+v", name, c)
			}
		}
	}
}

func TestBrokenConfiguration(t *testing.T) {
	report := Run(t.Context(), config.Default(),
		errors.New("agent.yaml: 2 errors:\n  node: is missing"), wellHost())
	if first := report.Checks[0]; report.OK || first.State != Fail ||
		first.Found != "agent.yaml: 2 errors: node: is missing" {
		t.Errorf("%+v", report)
	}
}

func plain(cfg *config.Config)    { cfg.Encryption.Mode = config.EncryptionOff }
func withBPF(cfg *config.Config)  { cfg.Encryption.Engine = config.EngineBPF }
func withUser(cfg *config.Config) { cfg.Encryption.Engine = config.EngineUser }
func inEtcd(cfg *config.Config) {
	cfg.Store = config.Store{Etcd: config.Etcd{Endpoints: []string{"unix:///run/etcd.sock"},
		Prefix: "/weft"}}
}

func lockedDown(text string) func(*fake) {
	return func(f *fake) { f.write("/sys/kernel/security/lockdown", text) }
}

func capable(mask string) func(*fake) {
	return func(f *fake) { f.write("/proc/self/status", "CapEff:\t"+mask+"\n") }
}

func noEngine(err error) func(*fake) { return func(f *fake) { f.refused = &EngineError{err} } }

func apparmor(label string) func(*fake) {
	return func(f *fake) {
		f.write("/sys/module/apparmor/parameters/enabled", "Y\n")
		f.write("/proc/self/attr/current", label)
	}
}

func forward(c Chain) func(*fake) { return func(f *fake) { f.chains = []Chain{c} } }
