package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/statefile"
)

// downTimeout bounds the clean-up after a failed Up or Run, whose own context may be over.
const downTimeout = 5 * time.Minute

// ErrUp is returned by Up for a lab that is up already.
var ErrUp = errors.New("is already up")

// Up builds a lab: namespaces, wires, objects, agents, pods, in this order. When it
// fails it takes down what it built, unless Options.Keep is set.
func Up(ctx context.Context, spec *Spec, opts Options) (*Lab, error) {
	spec = spec.clone()
	spec.setDefaults()
	if err := validate(spec, "", nil); err != nil {
		return nil, fmt.Errorf("lab description: %w", err)
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("a lab needs root for network namespaces and eBPF: run it with sudo")
	}
	binary, err := checkBinary(opts.Binary)
	if err != nil {
		return nil, err
	}
	if err := checkConfigs(spec); err != nil {
		return nil, err
	}
	l := &Lab{opts: opts, st: &store{name: spec.Name}}
	busy, err := l.st.claim()
	if err != nil {
		return nil, err
	}
	defer busy.Close()
	if err := l.clearRemains(ctx, spec); err != nil {
		return nil, err
	}
	first := &state{Phase: PhaseBuilding, Created: time.Now().UTC(), Binary: binary, spec: spec}
	if err := l.st.write(first); err != nil {
		return nil, err
	}
	if err := l.build(ctx, spec); err != nil {
		return nil, l.abandon(ctx, err)
	}
	return l, nil
}

// abandon takes a half-built lab down and adds what went wrong with that.
func (l *Lab) abandon(ctx context.Context, cause error) error {
	cause = fmt.Errorf("build lab %s: %w", l.st.name, cause)
	if l.opts.Keep {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
	defer cancel()
	return errors.Join(cause, l.takeDown(ctx))
}

// clearRemains refuses a lab that is up and removes what a crashed Up or Down left.
// Things of the lab's names that no record explains are somebody else's: refused.
func (l *Lab) clearRemains(ctx context.Context, spec *Spec) error {
	st, err := l.st.read()
	switch {
	case err == nil && st.Phase == PhaseUp && anyLeft(st.spec):
		return fmt.Errorf("lab %s %w: use it, or remove it with `weft lab down %s`", spec.Name,
			ErrUp, spec.Name)
	case err == nil:
		l.log().Warn("removing the remains of a lab that was not finished", "lab", spec.Name,
			"phase", st.Phase)
		if err := l.takeDownKeeping(ctx); err != nil {
			return fmt.Errorf("remove the remains of lab %s: %w", spec.Name, err)
		}
		if err := l.emptyDir(); err != nil {
			return err
		}
	case !errors.Is(err, labdir.ErrNoLab):
		return err
	}
	if left := leftovers(spec); len(left) > 0 {
		// The claim made our directory: nothing else is in it.
		l.removeDir()
		return fmt.Errorf("lab %s would use names that are taken, and no record says by which lab: %w", spec.Name, errors.Join(left...))
	}
	return nil
}

// emptyDir removes everything in the lab's directory but the lock that we hold.
func (l *Lab) emptyDir() error {
	entries, err := os.ReadDir(labdir.Dir(l.st.name))
	if err != nil {
		return fmt.Errorf("empty lab directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() == busyLock {
			continue
		}
		if err := os.RemoveAll(filepath.Join(labdir.Dir(l.st.name), e.Name())); err != nil {
			return fmt.Errorf("empty lab directory: %w", err)
		}
	}
	return nil
}

// anyLeft says whether any namespace of a lab still stands, as after anything but a reboot.
func anyLeft(s *Spec) bool {
	for _, ns := range namespaceNames(s) {
		if _, err := os.Stat(netns.Path(ns.name)); err == nil {
			return true
		}
	}
	return false
}

// checkConfigs has the agent's own configuration check look at every node's before anything is
// made. A wire of a node in mode xdp has no offload unless the file asks for it: a veth hands over
// checksums that are still to be finished, and an XDP program on its end loses that mark.
func checkConfigs(s *Spec) error {
	var errs []error
	for _, n := range s.Nodes {
		if n.Bare() {
			continue
		}
		data, err := agentConfig(s, n)
		var cfg *config.Config
		if err == nil {
			cfg, err = config.Parse("agent configuration of node "+n.Name, data)
		}
		if err == nil && cfg.Mode == config.ModeXDP {
			s.plainWires(n.Name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// plainWires turns offload off on a node's wires that do not say.
func (s *Spec) plainWires(node string) {
	off := false
	for i := range s.Wires {
		if s.Wires[i].Offload == nil && slices.Contains(s.Wires[i].Nodes, node) {
			s.Wires[i].Offload = &off
		}
	}
}

func (l *Lab) build(ctx context.Context, s *Spec) error {
	steps := []struct {
		what string
		do   func(context.Context, *Spec) error
	}{
		{"directories", l.makeDirs},
		{"keys", l.makeKeys},
		{"nodes", l.makeNodes},
		{"wires", l.makeWires},
		{"agents", l.startAgents},
		{"pods", l.attachPods},
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%s: %w", step.what, context.Cause(ctx))
		}
		start := time.Now()
		if err := step.do(ctx, s); err != nil {
			return err
		}
		l.log().Debug("step done", "step", step.what, "took",
			time.Since(start).Round(time.Millisecond))
	}
	return l.st.update(func(st *state) error { st.Phase = PhaseUp; return nil })
}

// makeDirs makes the lab's directories, objects, configurations and the plugin.
func (l *Lab) makeDirs(_ context.Context, s *Spec) error {
	if err := os.MkdirAll(labdir.Objects(s.Name), 0o755); err != nil {
		return fmt.Errorf("create objects directory: %w", err)
	}
	if err := writeNodeObjects(s); err != nil {
		return err
	}
	if err := writePodObjects(s); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if n.Bare() {
			continue
		}
		if err := os.MkdirAll(nodeDir(s.Name, n.Name), 0o755); err != nil {
			return fmt.Errorf("create node directory: %w", err)
		}
		data, err := agentConfig(s, n)
		if err != nil {
			return err
		}
		if err := statefile.WriteMode(filepath.Join(nodeDir(s.Name, n.Name), "agent.yaml"), data,
			0o644); err != nil {
			return err
		}
	}
	return l.st.update(linkPlugin)
}

// makeNodes makes the nodes' namespaces. Forwarding starts off, as on a fresh host:
// the agent must switch it on; for bare nodes we do.
func (l *Lab) makeNodes(_ context.Context, s *Spec) error {
	for _, n := range s.Nodes {
		path, err := netns.Create(nodeNS(s.Name, n.Name))
		if err != nil {
			return err
		}
		err = netns.Do(path, func() error {
			if err := SetSysctls(s.Sysctls); err != nil {
				return err
			}
			if err := setSysctls(nodeSysctls(n.Bare())); err != nil {
				return err
			}
			return linkUp("lo")
		})
		if err != nil {
			return fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	return nil
}

// nodeSysctls make a node the same whatever the machine's own settings are, beside SetSysctls.
func nodeSysctls(bare bool) map[string]string {
	v := map[string]string{
		"net/ipv4/ip_forward":                     "0",
		"net/ipv6/conf/all/disable_ipv6":          "0",
		"net/ipv6/conf/default/disable_ipv6":      "0",
		"net/ipv6/conf/default/accept_ra":         "0",
		"net/ipv6/conf/default/accept_dad":        "0", // link-local addresses work at once
		"net/ipv6/conf/all/accept_dad":            "0",
		"net/ipv6/conf/all/keep_addr_on_down":     "1", // a wire that went down comes back whole,
		"net/ipv6/conf/default/keep_addr_on_down": "1", // as with a network manager
	}
	if bare {
		v["net/ipv4/ip_forward"] = "1"
		v["net/ipv6/conf/all/forwarding"] = "1"
		v["net/ipv6/conf/default/forwarding"] = "1"
	}
	return v
}

func (l *Lab) makeWires(_ context.Context, s *Spec) error {
	for i, w := range s.Wires {
		if err := buildWire(s, w, i); err != nil {
			return err
		}
	}
	for _, n := range s.Nodes {
		if n.Bare() {
			if err := routeBareNode(s, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// routeBareNode gives a node without an agent the routes to the pods of its neighbours.
func routeBareNode(s *Spec, n NodeSpec) error {
	return netns.Do(netns.Path(nodeNS(s.Name, n.Name)), func() error {
		for _, peer := range s.Nodes {
			for _, cidr := range peer.PodCIDRs {
				via := s.neighbour(n, peer, cidr.Addr().Is4())
				if peer.Name == n.Name || !via.IsValid() {
					continue
				}
				if err := netlink.RouteReplace(&netlink.Route{Dst: ipNet(cidr),
					Gw: via.AsSlice()}); err != nil {
					return fmt.Errorf("route on bare node %s: %s via %s: %w", n.Name, cidr, via,
						err)
				}
			}
		}
		return nil
	})
}

// neighbour is the peer's own address of a family, if it is on a subnet of the node's.
func (s *Spec) neighbour(n, peer NodeSpec, v4 bool) netip.Addr {
	for _, p := range peer.Addresses {
		for _, w := range s.Wires {
			for _, own := range s.wireAddresses(w, n.Name) {
				if p.Addr().Is4() == v4 && slices.Contains(w.Nodes, n.Name) &&
					own.Contains(p.Addr()) {
					return p.Addr()
				}
			}
		}
	}
	return netip.Addr{}
}

// startAgents starts all agents first and waits then, so that they come up side by side.
func (l *Lab) startAgents(ctx context.Context, _ *Spec) error {
	var agents []*Node
	for _, n := range l.Nodes() {
		if !n.Bare {
			agents = append(agents, n)
		}
	}
	if len(agents) > 0 {
		if err := MountBPFFS(); err != nil {
			return err
		}
	}
	for _, n := range agents {
		p, err := n.launch()
		if err != nil {
			return err
		}
		l.log().Info("agent started", "node", n.Name, "pid", p.PID)
	}
	for _, n := range agents {
		if err := n.WaitReady(ctx); err != nil {
			return err
		}
		l.log().Info("agent ready", "node", n.Name)
	}
	return nil
}

// MountBPFFS mounts bpffs where a host without systemd has none. It stays, as others may use it.
func MountBPFFS() error {
	var st unix.Statfs_t
	if err := unix.Statfs(BPFFS, &st); err != nil {
		return fmt.Errorf("look at %s: %w", BPFFS, err)
	}
	if st.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", BPFFS, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount bpffs at %s: %w", BPFFS, err)
	}
	return nil
}

// log is where progress goes.
func (l *Lab) log() *slog.Logger {
	if l.opts.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l.opts.Log
}
