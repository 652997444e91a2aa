package model

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab/traffic"
	"weft.dev/weft/internal/netdev"
	"weft.dev/weft/internal/netns"
)

// echoPort is where pods answer while everything is whole.
const echoPort = 7007

// makeWhole puts in order what was done, as an operator would, and holds the lab to work as on its
// first day.
func (w *world) makeWhole() error {
	if err := w.putInOrder(); err != nil {
		return err
	}
	for _, h := range w.hosts {
		err := poll("node "+h.Name+" in order", func() error {
			if err := w.applyOwn(h); err != nil {
				return err
			}
			return w.well(h)
		})
		if err != nil {
			return err
		}
	}
	since := w.prober.roundsNow()
	err := poll("every pod to hear every other", func() error {
		w.prober.round(16)
		if silent := w.prober.silent(since); len(silent) > 0 {
			return fmt.Errorf("%d are silent: %s", len(silent),
				strings.Join(silent[:min(8, len(silent))], ", "))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(w.streams(), w.nothingLeft())
}

// putInOrder restores files and uplinks, and has every agent run.
func (w *world) putInOrder() error {
	errs := []error{w.objects.restoreAll()}
	for _, h := range w.hosts {
		switch {
		case h.mac == nil:
			errs = append(errs, w.makeUplink(h))
		case !h.up:
			errs = append(errs, w.setUplink(h, true))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, h := range w.hosts {
		errs = append(errs, w.running(h))
	}
	return errors.Join(errs...)
}

// running waits until an agent is ready, and starts it as systemd would: it ends itself if it has
// nothing to start with, or if it loses its uplink while it loads.
func (w *world) running(h *host) error {
	err := poll("the agent of node "+h.Name+" to be ready", func() error {
		if !h.alive() {
			if _, err := w.start(h); err != nil {
				return err
			}
		}
		ctx, cancel := w.context()
		defer cancel()
		return h.WaitReady(ctx)
	})
	h.ready = err == nil
	return err
}

// applyOwn restarts an agent that runs with what its Node object was by mistake, and says so.
func (w *world) applyOwn(h *host) error {
	s, err := client(h).Status(w.t.Context())
	if err != nil {
		return err
	}
	stale := func(p string) bool { return strings.Contains(p, "restart the agent to apply it") }
	if !slices.ContainsFunc(s.Problems, stale) {
		return nil
	}
	ctx, cancel := w.context()
	defer cancel()
	w.did("whole: the agent of node " + h.Name + " takes up its object")
	if err := w.end(h, h.StopAgent); err != nil {
		return err
	}
	if err := h.StartAgent(ctx); err != nil {
		return err
	}
	h.ready = true
	return nil
}

// well asks an agent whether anything is wrong. Ranges that only a mistake has claimed for the
// cluster are forgotten, as its documents say.
func (w *world) well(h *host) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	s, err := client(h).Status(ctx)
	if err != nil {
		return err
	}
	for _, e := range s.NoNode {
		if !w.own(e.Prefix) {
			_, err := client(h).ForgetNode(ctx, e.Prefix.String())
			return errors.Join(err, fmt.Errorf("%s was to be forgotten", e.Prefix))
		}
	}
	// A pod that asked for the XDP datapath tells so in modes that have none.
	s.Problems = slices.DeleteFunc(s.Problems,
		func(p string) bool {
			return strings.Contains(p,
				"asked for xdp, which pods get in modes")
		})
	if !s.Ready || len(s.NoNode) > 0 || len(s.Problems) > 0 || len(s.Store.Errors) > 0 {
		return fmt.Errorf("ready %t, no node %v, problems %q, objects %v", s.Ready, s.NoNode,
			s.Problems, s.Store.Errors)
	}
	e, err := client(h).Encrypt(ctx)
	if err != nil {
		return err
	}
	if len(e.Peers) != len(w.hosts)-1 || e.Peers[0].SendEpoch == 0 ||
		e.Peers[0].ReceiveEpoch == 0 || len(e.Plain) != 0 || len(e.Problems) > 0 {
		return fmt.Errorf("peers %+v, plain %v, problems %q", e.Peers, e.Plain, e.Problems)
	}
	return sealerRuns(h, e)
}

// sealerRuns holds a node to have a sealer, or none.
func sealerRuns(h *host, e *admin.Encryption) error {
	if runs := e.Sealer != nil && e.Sealer.PID != 0; runs != (h.Name == sealerNode) {
		return fmt.Errorf("node %s: sealer %+v", h.Name, e.Sealer)
	}
	return nil
}

// own says whether a prefix is one that the lab's nodes have.
func (w *world) own(p netip.Prefix) bool {
	return slices.ContainsFunc(w.hosts, func(h *host) bool {
		return slices.Contains(h.PodCIDRs, p) || p.IsSingleIP() &&
			slices.Contains(h.Addresses, p.Addr())
	})
}

// streams sends TCP, with segments that are cut late, between two pods of different nodes, both
// families.
func (w *world) streams() error {
	var errs []error
	pairs := [][2]string{{"client", "server"}, {"web", "db"}}
	pair := pairs[w.rand.IntN(len(pairs))]
	from, to := w.pod(pair[0]), w.pod(pair[1])
	echo, err := traffic.StartEcho(to.NetNS, echoPort)
	if err != nil {
		return err
	}
	defer echo.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for _, family := range families {
		dst := netip.AddrPortFrom(to.Addr(family), echoPort)
		if _, err := traffic.EchoTCP(ctx, from.NetNS, netip.Addr{}, dst, 300_000); err != nil {
			errs = append(errs,
				fmt.Errorf("TCP from %s to %s IPv%d: %w", from.Name, to.Name, family, err))
		}
	}
	return errors.Join(errs...)
}

// sealerSeals holds the sealer to seal what streams have left it, whatever has become of it. Its
// keys went if it ended together with its agent, so a new epoch comes first (docs/encryption.md,
// "the sealer").
func (w *world) sealerSeals() error {
	ctx, cancel := w.context()
	defer cancel()
	h := w.hosts[slices.Index(nodeNames[:], sealerNode)]
	// It is refused while an epoch before is not in use everywhere.
	if err := poll("a new epoch",
		func() error { _, err := client(h).RotateKeys(ctx); return err }); err != nil {
		return err
	}
	var before uint64
	return poll("the sealer to seal", func() error {
		e, err := client(h).Encrypt(ctx)
		if err == nil && e.Sealer == nil {
			err = errors.New("there is none")
		}
		if err != nil {
			return err
		}
		if before == 0 {
			before = e.Sealer.Sealed.Packets + 1
		}
		if e.Sealer.Sealed.Packets < before {
			return errors.Join(w.streams(), fmt.Errorf("%+v", e.Sealer))
		}
		return nil
	})
}

// nothingLeft holds namespaces, interfaces and published endpoints against the pods that there are.
func (w *world) nothingLeft() error {
	var errs []error
	want := []string{netns.Path("weft-" + labName + "-wire-w0")}
	for _, n := range w.lab.Nodes() {
		want = append(want, n.NetNS)
	}
	var files []string
	for _, p := range w.prober.pods {
		want, files = append(want, p.NetNS), append(files, endpointFile(w.lab, p.Pod))
	}
	errs = append(errs, same("network namespaces", netns.Path("weft-"+labName+"-*"), want),
		poll("published endpoints", func() error {
			return same("published endpoints",
				filepath.Join(w.lab.ObjectsDir(), "endpoints", "*.yaml"), files)
		}))
	for _, h := range w.hosts {
		errs = append(errs, poll("interfaces", func() error { return w.interfaces(h) }))
	}
	return errors.Join(errs...)
}

func same(what, pattern string, want []string) error {
	found, err := filepath.Glob(pattern)
	slices.Sort(found)
	slices.Sort(want)
	if err == nil && !slices.Equal(found, want) {
		err = fmt.Errorf("%s are %v, not %v", what, found, want)
	}
	return err
}

// interfaces holds a node's interfaces against its pods'.
func (w *world) interfaces(h *host) error {
	want := []string{"lo", "w0", "weft_host", "weft_net"}
	if h.Name == sealerNode {
		want = append(want, netdev.Sealer)
	}
	for _, p := range w.prober.pods {
		if p.Node != h.Name {
			continue
		}
		want = append(want, p.HostIf)
		if p.path == "xdp" && h.mode == "auto" {
			want = append(want, strings.Replace(p.HostIf, "weft", "wefx", 1))
		}
	}
	var found []string
	err := h.Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			found = append(found, l.Attrs().Name)
		}
		return err
	})
	slices.Sort(found)
	slices.Sort(want)
	if err == nil && !slices.Equal(found, want) {
		err = fmt.Errorf("interfaces of node %s are %v, not %v", h.Name, found, want)
	}
	return err
}

// settlePlain finds out whether pod web is sealed again everywhere: no policy, and every agent has
// taken it in.
func (w *world) settlePlain() {
	if !w.mayBePlain || exists(w.objects.path("policy.yaml")) {
		return
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	for _, h := range w.hosts {
		if !h.alive() {
			return
		}
		if e, err := client(h).Encrypt(ctx); err != nil || len(e.Plain) > 0 {
			return
		}
	}
	w.prober.with(func() { w.mayBePlain = false })
}
