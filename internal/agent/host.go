package agent

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// hostLook is how often the agent looks at what others may have changed on the host without an
// event.
const hostLook = 10 * time.Second

// hostPause is kept between two looks for events. What comes meanwhile is one look.
const hostPause = 500 * time.Millisecond

// watchHost has endpoints mended, and masquerading set again, when somebody else has changed the
// host.
func (a *Agent) watchHost(ctx context.Context, n *node) {
	slow := time.NewTicker(hostLook)
	defer slow.Stop()
	a.lookAtHost(ctx, n)
	for {
		select {
		case <-ctx.Done():
			return
		case change := <-n.dp.HostChanges():
			if change.All {
				a.lookAtHost(ctx, n)
			} else {
				a.mendEndpoints(ctx, n, change.Interfaces...)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(hostPause):
			}
		case <-slow.C:
			a.lookAtHost(ctx, n)
		}
	}
}

func (a *Agent) mendEndpoints(ctx context.Context, n *node, hostIfs ...string) {
	if err := n.manager.Mend(ctx, hostIfs...); ctx.Err() == nil &&
		(err != nil || len(hostIfs) == 0) {
		a.problem("host endpoints", err) // a look at some does not end what is wrong with others
	}
}

func (a *Agent) lookAtHost(ctx context.Context, n *node) {
	a.mendEndpoints(ctx, n)
	a.problem("host masquerade", a.mendMasquerade(n))
	a.problem("host uplinks", a.compareUplinks(n))
}

// mendMasquerade sets the rules again if they are not there any more.
func (a *Agent) mendMasquerade(n *node) error {
	n.maskLock.Lock()
	defer n.maskLock.Unlock()
	if !n.maskedOnce || n.masked == nil {
		return nil
	}
	intact, err := a.seams.masked(n.masked)
	if err == nil && !intact {
		a.log.Warn("masquerading rules are gone, setting them again")
		if err = a.seams.masquerade(a.cfg.Instance, n.masked); err == nil {
			a.note("masquerading rules were gone (removed by somebody else?), set them again")
		}
	}
	if err != nil {
		return fmt.Errorf("masquerading: %w", err)
	}
	return nil
}

// compareUplinks tells when the node's addresses are on other interfaces than when the agent
// started.
func (a *Agent) compareUplinks(n *node) error {
	now, err := a.seams.findLinks(a.cfg, n.object)
	if err != nil {
		return fmt.Errorf("uplinks: %w", err)
	}
	if !slices.Equal(slices.Sorted(slices.Values(now.Uplinks)),
		slices.Sorted(slices.Values(n.links.Uplinks))) {
		return fmt.Errorf("the node's addresses are on %v now, the hooks on %v: restart the agent to hook the new interfaces", now.Uplinks, n.links.Uplinks)
	}
	return nil
}
