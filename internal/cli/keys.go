package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
)

// defaultKEKFile is the key file of the default configuration.
const defaultKEKFile = "/etc/weft/kek"

func newKeys(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Epochs and the keys that come from them",
		Long: `Epochs and the keys that come from them: what is in use with which node, and the next one.

An epoch is the life of one data-encryption key. Every pair of nodes moves to the newest on its
own, and no packet is lost while it does.`,
		Example: "  weft keys status\n  weft keys rotate --wait",
	}
	cmd.AddCommand(newKeysStatus(a), newKeysRotate(a), newKeysHistory(a), newKeysInit(a), newKeysCheck(a))
	return cmd
}

func newKeysStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show epochs, and the state of the keys with every other node",
		Long: `Show epochs, whether this node can read each, and the state of the keys with every other node.
The exit code is 1 while this node can read no epoch, or has no keys with some node.`,
		Example: "  weft keys status\n  weft keys status -o wide\n  weft keys status -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, (*admin.Client).Keys, writeKeys, keysWork)
		},
	}
}

// keysWork says whether packets can pass between this node and every other.
func keysWork(s *keys.Status) bool {
	return s.Epoch != 0 && !slices.ContainsFunc(s.Peers, func(p keys.PeerStatus) bool {
		return p.State != keys.StateLeaving && (p.EpochTX == 0 || p.EpochRX == 0)
	})
}

func writeKeys(w io.Writer, s *keys.Status, wide bool) error {
	rows := output.Rows{Header: []string{"Node:", s.Node}}
	epoch := "none"
	if s.Epoch != 0 {
		epoch = strconv.FormatUint(s.Epoch, 10)
	}
	if s.Newest > s.Epoch {
		epoch += fmt.Sprintf(" (the newest is %d)", s.Newest)
	}
	rows.Add("Epoch:", epoch)
	leader := cmp.Or(s.Leader, "unknown")
	if s.IsLeader {
		leader = s.Node + " (this node)"
	}
	rows.Add("Leader:", leader)
	rows.Add("KEK:", s.KEK)
	if !s.NextRotation.IsZero() {
		rows.Add("Next rotation:", "in "+in(s.NextRotation))
	}
	if !s.OldestKey.IsZero() {
		rows.Add("Oldest key:", ago(s.OldestKey)+" old")
	}
	if text := kmsLine(&s.KMS); text != "" {
		rows.Add("KMS:", text)
	}
	if text := turnedLine(&s.Counters.Turned); text != "" {
		rows.Add("Refused:", text)
	}
	for _, problem := range s.Problems {
		rows.Add("Problem:", problem)
	}
	if err := rows.Write(w, true); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := writeKeyEpochs(w, s, wide); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return writeKeyPeers(w, s, wide)
}

// turnedLine says which connections were closed before a certificate was seen, "" for none.
func turnedLine(t *handshake.Turned) string {
	var parts []string
	if t.Strangers > 0 {
		parts = append(parts, fmt.Sprintf("%d connections from addresses that no node has, the last from %s", t.Strangers, t.LastStranger))
	}
	if t.Silent > 0 {
		parts = append(parts, fmt.Sprintf("%d that said nothing", t.Silent))
	}
	if t.Evicted > 0 {
		parts = append(parts, fmt.Sprintf("%d to make room", t.Evicted))
	}
	return strings.Join(parts, ", ")
}

// kmsLine is how the KMS has answered, "" if it was not asked.
func kmsLine(k *keys.KMSStatus) string {
	switch {
	case k.Failing != "":
		return fmt.Sprintf("%s for %s: %s", k.Failing, ago(k.Since), cmp.Or(k.LastError, "tried again and again"))
	case k.LastOK.IsZero():
		return ""
	}
	line := fmt.Sprintf("ok %s ago, in %s", ago(k.LastOK), k.Took.Round(time.Microsecond))
	if k.LastErrorKind != "" {
		line += fmt.Sprintf("; failed as %s %s ago", k.LastErrorKind, ago(k.LastErrorAt))
	}
	return line
}

func writeKeyEpochs(w io.Writer, s *keys.Status, wide bool) error {
	rows := output.Rows{
		Header: []string{"EPOCH", "KEY", "AGE", "ENDS IN", "PEERS", "PROBLEM", "NEXT TRY", "KEK", "VERSION"}, WideFrom: 6,
		Empty: "no epoch has been made yet",
	}
	for _, e := range s.Epochs {
		rows.Add(fmt.Sprint(e.Number), e.DEK, ago(e.Created), in(e.Expires), fmt.Sprint(e.Peers), epochProblem(&e),
			in(e.NextTry), e.KEK, cmp.Or(e.KEKVersion, "-"))
	}
	return rows.Write(w, wide)
}

// epochProblem is what is wrong with an epoch, the alarm first.
func epochProblem(e *keys.EpochStatus) string {
	if e.Extended.IsZero() {
		return cmp.Or(e.Error, "-")
	}
	text := fmt.Sprintf("EXTENDED beyond its hard TTL: in use for another %s, at most %s", in(e.Extended), in(e.ExtendedMost))
	if e.Error != "" {
		text += "; " + e.Error
	}
	return text
}

func writeKeyPeers(w io.Writer, s *keys.Status, wide bool) error {
	rows := output.Rows{
		Header:   []string{"PEER", "STATE", "SINCE", "EPOCH OUT/IN", "PQ", "PROBLEM", "NEXT TRY", "AGREED", "KEY ENDS IN", "LANES", "GROUP"},
		WideFrom: 6, Empty: "this node knows no other node",
	}
	for _, p := range s.Peers {
		quantum := "-" // the keys are a former agent's
		if p.Group != "" {
			quantum = map[bool]string{true: "yes", false: "no"}[p.PostQuantum]
		}
		rows.Add(p.Name, p.State, ago(p.Since), fmt.Sprintf("%d/%d", p.EpochTX, p.EpochRX), quantum, cmp.Or(p.LastError, p.Waits, "-"),
			in(p.NextTry), ago(p.Exchanged), in(p.Expires), number(p.Lanes), cmp.Or(p.Group, "-"))
	}
	return rows.Write(w, wide)
}

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
			return a.print(epoch, func(w io.Writer, _ bool) error {
				text := fmt.Sprintf("epoch %d is made, ends in %s; every pair of nodes moves to it by itself", epoch.Number, in(epoch.Expires))
				if wait {
					text = fmt.Sprintf("epoch %d is in use with every other node, after %s", epoch.Number, time.Since(began).Round(time.Millisecond))
				}
				_, err := fmt.Fprintln(w, text)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "end when this node uses the new epoch with every other node")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	return cmd
}

// awaitEpoch waits until this node runs on an epoch, or a newer one, with every other node.
func awaitEpoch(ctx context.Context, client *admin.Client, number uint64) error {
	for {
		status, err := client.Keys(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && status.Epoch >= number && status.Settled() {
			return nil
		}
		select {
		case <-ctx.Done():
			return notSettled(status, number)
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
			late = append(late, strings.TrimSuffix(fmt.Sprintf("%s (%s) %s", p.Name, p.State, p.LastError), " "))
		}
	}
	return fmt.Errorf("epoch %d is made, but not in use with %s: see `weft keys status`", number, strings.Join(late, "; "))
}

func newKeysHistory(a *app) *cobra.Command {
	var last int
	var file string
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show what happened to keys since the agent started, or what the audit log says",
		Long: `Show what happened to keys since the agent started. With --file it reads an audit log (keys.audit.file,
by default audit.jsonl in the state directory) and its full files instead: no agent is needed.`,
		Example: "  weft keys history\n  weft keys history --last 0 -o json    # all that the agent remembers\n" +
			"  weft keys history --file /var/lib/weft/audit.jsonl",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file != "" {
				records, err := keys.ReadAudit(file, last)
				if err != nil {
					return err
				}
				return a.print(records, func(w io.Writer, wide bool) error { return writeAudit(w, records, wide) })
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			events, err := client.KeyHistory(cmd.Context())
			if err != nil {
				return err
			}
			if last > 0 && len(events) > last {
				events = events[len(events)-last:]
			}
			return a.print(events, func(w io.Writer, wide bool) error { return writeKeyHistory(w, events, wide) })
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "read this audit log instead of asking the agent")
	cmd.Flags().IntVar(&last, "last", 30, "how many events; 0 for all")
	return cmd
}

func writeKeyHistory(w io.Writer, events []keys.Event, wide bool) error {
	rows := output.Rows{Header: []string{"TIME", "EVENT", "EPOCH", "PEER", "OUTCOME", "DETAIL", "TOOK"}, WideFrom: 6, Empty: "nothing has happened yet"}
	for _, e := range events {
		epoch := "-"
		if e.Epoch != 0 {
			epoch = strconv.FormatUint(e.Epoch, 10)
		}
		rows.Add(e.Time.Local().Format("2006-01-02 15:04:05.000"), e.Event, epoch, cmp.Or(e.Peer, "-"), cmp.Or(e.Outcome, "-"), cmp.Or(e.Detail, "-"), e.Took.String())
	}
	return rows.Write(w, wide)
}

func writeAudit(w io.Writer, records []keys.AuditRecord, wide bool) error {
	rows := output.Rows{
		Header:   []string{"TIME", "NODE", "OP", "EPOCH", "PEER", "OUTCOME", "DETAIL", "TOOK", "ATTEMPTS", "KEK", "VERSION"},
		WideFrom: 7, Empty: "nothing is recorded",
	}
	for _, r := range records {
		epoch := "-"
		if r.Epoch != 0 {
			epoch = strconv.FormatUint(r.Epoch, 10)
		}
		rows.Add(r.Time.Local().Format("2006-01-02 15:04:05.000"), r.Node, r.Op, epoch, cmp.Or(r.Peer, "-"), r.Outcome, cmp.Or(r.Detail, "-"),
			r.Latency.String(), number(r.Attempts), cmp.Or(r.KEK, "-"), cmp.Or(r.KEKVersion, "-"))
	}
	return rows.Write(w, wide)
}

func newKeysInit(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "Make the file with the key-encryption key",
		Long: `Make the file that keys.kek names as file://FILE: 32 random bytes, readable by root only. One that
is there is never overwritten: the epochs that it wrapped could not be read any more.

Every node needs the same file: copy it over a safe channel. A KMS needs no such copy.`,
		Example: "  weft keys init\n  weft keys init /etc/weft/kek",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := defaultKEKFile
			if len(args) > 0 {
				path = strings.TrimPrefix(args[0], "file://")
			}
			// Only the last directory: a mistyped path is an error.
			if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make the key file's directory: %w", err)
			}
			print, err := kek.CreateKeyFile(path)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%s is there already and stays as it is: epochs that it wrapped could not be read without it", path)
			}
			if err != nil {
				return err
			}
			result := struct {
				Path        string `json:"path"`
				Fingerprint string `json:"fingerprint"`
			}{path, print}
			return a.print(result, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "made %s (fingerprint %s): copy it to every node, mode 0600, and set keys.kek: file://%s\n", path, print, path)
				return err
			})
		},
	}
}

func newKeysCheck(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Try the key-encryption key: wrap, unwrap, and whom the KMS takes this node for",
		Long: `Try the key-encryption key of the configuration: wrap a throwaway key, unwrap it, see that it does
not unwrap for another epoch, and ask whom the KMS takes this process for. No agent is needed.`,
		Example: "  weft keys check\n  weft keys check --config /etc/weft/agent.yaml -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(path)
			if err != nil {
				return err
			}
			key, err := kek.Open(cmd.Context(), cfg.Keys.KEK, kek.Options{Node: cfg.Node})
			if err != nil {
				return err
			}
			defer key.Close()
			report, err := key.Check(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(report, func(w io.Writer, _ bool) error {
				rows := output.Rows{Header: []string{"KEK:", report.KEK}}
				rows.Add("Version:", cmp.Or(report.Version, "-"))
				rows.Add("Caller:", report.Identity.Principal)
				rows.Add("Credentials:", cmp.Or(report.Identity.Source, "-"))
				if report.Identity.Note != "" {
					rows.Add("Note:", report.Identity.Note)
				}
				rows.Add("Wrapped in:", report.Wrap.Round(time.Microsecond).String())
				rows.Add("Unwrapped in:", report.Unwrap.Round(time.Microsecond).String())
				return rows.Write(w, true)
			})
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", config.DefaultPath, "the agent's configuration file")
	return cmd
}
