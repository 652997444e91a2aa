package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
)

// rotatePoll is how often a rotation that is waited for is looked at.
const rotatePoll = 200 * time.Millisecond

func newKeysRotate(a *app) *cobra.Command {
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Make the next epoch now",
		Long: `Make the next epoch now. Any node may do it. The epoch before must be in use everywhere that this
node can see; that is waited for.

With --wait it ends when this node runs on the new epoch with every other node, in both directions,
or fails after --timeout and names those that do not.`,
		Example: "  weft keys rotate\n  weft keys rotate --wait --timeout 2m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			began := time.Now()
			epoch, err := client.RotateKeys(cmd.Context())
			if err != nil {
				return err
			}
			if wait {
				ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
				defer cancel()
				if err := awaitEpoch(ctx, client, epoch.Number); err != nil {
					return err
				}
			}
			return a.Print(epoch, func(w io.Writer, _ bool) error {
				text := fmt.Sprintf("epoch %d is made, ends in %s; every pair of nodes moves to it by itself", epoch.Number, in(epoch.Expires))
				if wait {
					text = fmt.Sprintf("epoch %d is in use with every other node, after %s",
						epoch.Number, time.Since(began).Round(time.Millisecond))
				}
				_, err := fmt.Fprintln(w, text)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false,
		"end when this node uses the new epoch with every other node")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

// awaitEpoch waits until this node runs on an epoch, or a newer one, with every other node.
func awaitEpoch(ctx context.Context, client *admin.Client, number uint64) error {
	var last *keys.Status // what was told before a request that the time ran out on
	for {
		status, err := client.Keys(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil {
			if last = status; status.Epoch >= number && status.Settled() {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return notSettled(last, number)
		case <-time.After(rotatePoll):
		}
	}
}

// notSettled names what is not on an epoch.
func notSettled(s *keys.Status, number uint64) error {
	if s == nil {
		return fmt.Errorf("epoch %d is made, but the agent has not told in time whether it is in use: see `weft keys status`", number)
	}
	for _, e := range s.Epochs {
		if e.Number == number && e.Error != "" {
			return fmt.Errorf("epoch %d is made, but this node cannot read it: %s", number, e.Error)
		}
	}
	var late []string
	for _, p := range s.Peers {
		if p.State != keys.StateLeaving && (p.EpochTX < number || p.EpochRX < number) {
			late = append(late,
				strings.TrimSuffix(fmt.Sprintf("%s (%s) %s", p.Name, p.State, p.LastError), " "))
		}
	}
	return fmt.Errorf("epoch %d is made, but not in use with %s: see `weft keys status`", number,
		strings.Join(late, "; "))
}
