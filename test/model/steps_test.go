package model

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// action is one kind of step.
type action struct {
	name   string
	weight int
	can    func(*world, *host) bool // nil: always
	do     func(*world, *host) (string, error)
}

func alive(_ *world, h *host) bool { return h.alive() }
func dead(_ *world, h *host) bool  { return !h.alive() }
func sealing(_ *world, h *host) bool {
	return h.Name == sealerNode && h.alive()
}
func there(_ *world, h *host) bool { return h.mac != nil }

// actions are all that can happen, with how often.
var actions = []action{
	{"edit", 36, nil, func(w *world, _ *host) (string, error) { return w.edit() }},
	{"swap ranges", 3, nil, func(w *world, _ *host) (string, error) { return w.swapRanges() }},
	{"restore", 14, func(w *world, _ *host) bool { return !w.objects.whole() },
		func(w *world, _ *host) (string, error) { return w.restoreOne() }},
	{"restore all", 4, func(w *world, _ *host) bool { return !w.objects.whole() },
		func(w *world, _ *host) (string, error) { return "", w.objects.restoreAll() }},
	{"policy", 5, nil, func(w *world, _ *host) (string, error) { return w.allow() }},
	{"break isolation", 6, nil,
		func(w *world, _ *host) (string, error) { return w.breakIsolation() }},
	{"kill", 5, alive,
		func(w *world, h *host) (string, error) { return "", w.end(h, h.KillAgent) }},
	{"stop", 2, alive,
		func(w *world, h *host) (string, error) { return "", w.end(h, h.StopAgent) }},
	{"start", 24, dead, func(w *world, h *host) (string, error) { return w.start(h) }},
	{"change mode", 3, nil, func(w *world, h *host) (string, error) { return w.changeMode(h) }},
	{"restart with half the directory", 2, alive,
		func(w *world, h *host) (string, error) { return w.restartWithHalf(h) }},
	{"kill sealer", 5, sealing,
		func(w *world, h *host) (string, error) { return w.killSealer(h, false) }},
	{"kill sealer and agent", 2, sealing,
		func(w *world, h *host) (string, error) { return w.killSealer(h, true) }},
	{"uplink down", 4, func(_ *world, h *host) bool { return h.up },
		func(w *world, h *host) (string, error) { return "", w.setUplink(h, false) }},
	{"uplink up", 24, func(_ *world, h *host) bool { return h.mac != nil && !h.up },
		func(w *world, h *host) (string, error) { return "", w.setUplink(h, true) }},
	{"remove uplink", 5, there,
		func(w *world, h *host) (string, error) { return "", w.deleteUplink(h) }},
	{"make uplink", 36, func(_ *world, h *host) bool { return h.mac == nil },
		func(w *world, h *host) (string, error) { return "", w.makeUplink(h) }},
	{"add pod", 14, func(w *world, h *host) bool { return h.alive() && h.ready },
		func(w *world, h *host) (string, error) { return w.addPod(h) }},
	// An agent that starts refuses to let pods go; runtimes try again.
	{"delete pod", 8, func(_ *world, h *host) bool { return !h.alive() || h.ready },
		func(w *world, h *host) (string, error) { return w.deletePod(h) }},
}

// favoured steps come ten times as often as they would; nil favours none.
var favoured *regexp.Regexp

func (a action) often() int {
	if favoured != nil && favoured.MatchString(a.name) {
		return 10 * a.weight
	}
	return a.weight
}

// choose draws a step for a random node, by weight.
func (w *world) choose() (action, *host) {
	h := w.hosts[w.rand.IntN(len(w.hosts))]
	var able []action
	sum := 0
	for _, a := range actions {
		if a.can == nil || a.can(w, h) {
			able, sum = append(able, a), sum+a.often()
		}
	}
	at := w.rand.IntN(sum)
	for _, a := range able {
		if at -= a.often(); at < 0 {
			return a, h
		}
	}
	panic("weights do not add up")
}

func (w *world) restoreOne() (string, error) {
	var names []string
	for name := range w.objects.damaged {
		names = append(names, name)
	}
	slices.Sort(names)
	name := names[w.rand.IntN(len(names))]
	return name, w.objects.restore(name)
}

// end stops or kills an agent.
func (w *world) end(h *host, how func(context.Context) error) error {
	ctx, cancel := w.context()
	defer cancel()
	h.ready = false
	return how(ctx)
}

// killSealer kills a node's sealer, and before it the agent that would start another.
func (w *world) killSealer(h *host, withAgent bool) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), startWait)
	defer cancel()
	e, err := client(h).Encrypt(ctx)
	if err != nil || e.Sealer == nil || e.Sealer.PID == 0 {
		return "there is none", nil
	}
	if withAgent {
		if err := w.end(h, h.KillAgent); err != nil {
			return "", err
		}
	}
	if err := unix.Kill(e.Sealer.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return "", os.NewSyscallError("kill", err)
	}
	return fmt.Sprintf("pid %d, which had sealed %d packets", e.Sealer.PID,
		e.Sealer.Sealed.Packets), nil
}

// startWait is how long a start is watched; it may take longer, and other steps come meanwhile.
const startWait = time.Second

// start starts an agent. One whose node is not in order may wait, or end with a word why.
func (w *world) start(h *host) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), startWait)
	defer cancel()
	err := h.StartAgent(ctx)
	h.ready = err == nil
	if err != nil {
		return fmt.Sprintf("mode %s, not ready yet, alive %t", h.mode, h.alive()), nil
	}
	return "mode " + h.mode, nil
}

// lookReady finds out whether agents that were started have become ready.
func (w *world) lookReady() {
	ctx, cancel := context.WithTimeout(w.t.Context(), startWait)
	defer cancel()
	for _, h := range w.hosts {
		if !h.ready && h.alive() {
			r, err := client(h).Ready(ctx)
			h.ready = err == nil && r.Ready
		}
	}
}

// restart ends a running agent before it starts one.
func (w *world) restart(h *host) (string, error) {
	if h.alive() {
		how := h.StopAgent
		if w.rand.IntN(2) == 0 {
			how = h.KillAgent
		}
		if err := w.end(h, how); err != nil {
			return "", err
		}
	}
	return w.start(h)
}

func (w *world) changeMode(h *host) (string, error) {
	if err := h.writeMode([]string{"auto", "xdp", "tc", "stack"}[w.rand.IntN(4)]); err != nil {
		return "", err
	}
	return w.restart(h)
}

func (w *world) restartWithHalf(h *host) (string, error) {
	if err := w.end(h, h.KillAgent); err != nil {
		return "", err
	}
	if err := w.halve(); err != nil {
		return "", err
	}
	return w.start(h)
}

// addPod attaches a pod that is not there. That must work where nothing is damaged.
func (w *world) addPod(h *host) (string, error) {
	for _, spec := range comers {
		if spec.Node != h.Name || w.pod(spec.Name) != nil {
			continue
		}
		wait := patience
		if !w.objects.whole() || w.anyAway() {
			wait = 2 * time.Second
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), wait)
		defer cancel()
		added, err := w.lab.AddPod(ctx, spec)
		delete(w.objects.damaged, "pods.yaml") // the lab has written it anew
		if err != nil && wait < patience {
			return spec.Name + ": refused", nil
		}
		if err != nil {
			return spec.Name, err
		}
		p, err := newPod(added, spec.PodDatapath)
		if err == nil {
			w.prober.with(func() { w.prober.pods = append(w.prober.pods, p) })
		}
		return spec.Name, err
	}
	return "nobody is missing", nil
}

// anyAway says whether an agent does not run or an uplink does not work.
func (w *world) anyAway() bool {
	return slices.ContainsFunc(w.hosts,
		func(h *host) bool { return !h.alive() || !h.ready || !h.up })
}

// deletePod removes a pod, also while its agent is dead.
func (w *world) deletePod(h *host) (string, error) {
	for _, spec := range comers {
		p := w.pod(spec.Name)
		if spec.Node != h.Name || p == nil {
			continue
		}
		w.prober.with(func() {
			w.prober.pods = slices.DeleteFunc(w.prober.pods, func(o *pod) bool { return o == p })
			p.close()
		})
		ctx, cancel := w.context()
		defer cancel()
		err := w.lab.DelPod(ctx, spec.Name)
		delete(w.objects.damaged, "pods.yaml")
		return spec.Name, err
	}
	return "nobody is left to go", nil
}
