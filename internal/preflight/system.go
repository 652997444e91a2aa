package preflight

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/datapath/hook"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/sealer/fit"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
	"weft.dev/weft/internal/version"
)

// System is the machine that this process runs on, with its network namespace.
type System struct {
	fit.System
	// What the agent itself decides by.
	CheckCertificate func(context.Context, *config.Config) error
	PodMTUOf         func(*config.Config, int, *v1alpha1.Node, *store.Snapshot) (int, error)
	ReadObjects      func(context.Context, config.Store) (*store.Snapshot, error)
}

var _ Host = System{}

func (System) UID() int                              { return os.Geteuid() }
func (System) Kernel() string                        { return version.Kernel() }
func (System) ReadFile(path string) ([]byte, error)  { return os.ReadFile(path) }
func (System) Stat(path string) (fs.FileInfo, error) { return os.Stat(path) }
func (System) OnBPFFS(path string) (bool, error)     { return startup.OnBPFFS(path) }
func (System) IPv6() bool                            { return netdev.HasIPv6() }
func (System) Now() time.Time                        { return time.Now() }
func (System) Running(cfg *config.Config) int        { return startup.Running(cfg.RunDir()) }

// objectsTimeout bounds the reading of all objects, also from an etcd that answers slowly.
const objectsTimeout = 30 * time.Second

func (s System) Objects(ctx context.Context, cfg *config.Config) (*store.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, objectsTimeout)
	defer cancel()
	return s.ReadObjects(ctx, cfg.Store)
}

func (System) Links(cfg *config.Config, node *v1alpha1.Node) (startup.Links, error) {
	return startup.FindLinks(cfg, node.Spec.Addresses)
}

func (s System) PodMTU(cfg *config.Config, uplinks int, node *v1alpha1.Node,
	snapshot *store.Snapshot) (int, error) {
	return s.PodMTUOf(cfg, uplinks, node, snapshot)
}

func (s System) Certificate(ctx context.Context, cfg *config.Config) error {
	return s.CheckCertificate(ctx, cfg)
}

func (System) KEK(ctx context.Context, cfg *config.Config) error {
	key, err := kek.Open(ctx, cfg.Keys.KEK, kek.Options{Node: cfg.Node})
	if err != nil {
		return err
	}
	return key.Close()
}

func (System) ReadDir(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (System) Free(path string) (uint64, error) {
	stat, err := startup.Statfs(path)
	return stat.Bavail * uint64(stat.Bsize), err
}

func (System) Built() time.Time {
	built, err := time.Parse(time.RFC3339, version.Get().Built)
	if err != nil {
		return time.Time{}
	}
	return built
}

// Synchronised asks without setting anything (adjtimex(2) with no modes).
func (System) Synchronised() bool {
	state, err := unix.Adjtimex(&unix.Timex{})
	return err == nil && state != unix.TIME_ERROR
}

// Datapath makes maps that nothing pins, and programs that nothing attaches: all goes with their
// descriptors.
func (System) Datapath(cfg *config.Config) (esp.EngineStatus, error) {
	m, err := unpinned(cfg.Encryption.On())
	if err != nil {
		return esp.EngineStatus{}, err
	}
	defer m.Close()
	loaded, err := hook.Load(m, map[string]any{"weft_sealing": bpf.Flag(cfg.Encryption.On())}, true)
	if err != nil {
		return esp.EngineStatus{}, err
	}
	defer loaded.Close()
	if !cfg.Encryption.On() {
		return esp.EngineStatus{}, nil
	}
	c := cfg.Encryption
	options := &esp.Options{
		Engine: c.Engine, AllowTableAES: c.AllowTableAES, Port: uint16(c.Port), Lanes: c.Lanes,
	}
	host := esp.Host{Maps: m, Pieces: cfg.Mode == config.ModeXDP,
		Log: slog.New(slog.DiscardHandler)}
	sas, err := esp.Open(host, options)
	if err != nil {
		return esp.EngineStatus{}, &EngineError{err}
	}
	defer sas.Close() //nolint:errcheck // nothing is in them
	return sas.EngineStatus(), nil
}

// unpinned are the maps that all programs share, with the smallest flow table.
func unpinned(sealing bool) (*bpf.Maps, error) {
	specs, err := bpf.SharedMaps(1024, sealing)
	if err != nil {
		return nil, err
	}
	m := &bpf.Maps{ByName: map[string]*ebpf.Map{}, Created: map[string]bool{}}
	for name, spec := range specs {
		made, err := ebpf.NewMap(spec)
		if err != nil {
			m.Close()
			return nil, fmt.Errorf("create map %s: %w", name, bpf.NotAllowed(err))
		}
		m.ByName[name] = made
	}
	if err := (&ebpf.Collection{Maps: maps.Clone(m.ByName)}).Assign(m); err != nil {
		m.Close()
		return nil, fmt.Errorf("find the BPF objects' maps: %w", err)
	}
	return m, nil
}

func (System) Forward() ([]Chain, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, err
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
		nftables.TableFamilyINet: "inet",
	}
	var out []Chain
	for _, c := range all {
		family := families[c.Table.Family]
		forwards := c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward
		if family == "" || !forwards || c.Type != nftables.ChainTypeFilter {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, err
		}
		drops := c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		out = append(out, Chain{family, c.Table.Name, c.Name, drops, len(rules)})
	}
	slices.SortFunc(out, func(a, b Chain) int {
		return slices.Compare([]string{a.Family, a.Table, a.Name},
			[]string{b.Family, b.Table, b.Name})
	})
	return out, nil
}

// ownerOf is a file's, if that can be known.
func ownerOf(info fs.FileInfo) (uint32, bool) {
	raw, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return 0, false
	}
	return raw.Uid, true
}
