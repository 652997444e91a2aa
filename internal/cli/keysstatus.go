package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/keys"
	"weft.dev/weft/internal/keys/epochs"
	"weft.dev/weft/internal/keys/handshake"
	"weft.dev/weft/internal/keys/kek"
)

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

// turnedLine says what was refused before a certificate was seen, "" for none.
func turnedLine(t *handshake.Turned) string {
	var parts []string
	if t.Filtered > 0 {
		parts = append(parts,
			fmt.Sprintf("%d packets from addresses that no node has, dropped by the kernel",
				t.Filtered))
	}
	if t.Unknown > 0 {
		parts = append(parts,
			fmt.Sprintf("%d connections from addresses that no node has", t.Unknown))
	}
	if len(parts) > 0 && t.LastUnknown.IsValid() {
		parts[len(parts)-1] += fmt.Sprintf(", the last from %s", t.LastUnknown)
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
func kmsLine(k *kek.Health) string {
	switch {
	case k.Failing != "":
		return fmt.Sprintf("%s for %s: %s", k.Failing, ago(k.Since),
			cmp.Or(k.LastError, "tried again and again"))
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
		Header: []string{"EPOCH", "KEY", "AGE", "ENDS IN", "PEERS", "PROBLEM", "NEXT TRY", "KEK",
			"VERSION"}, WideFrom: 6,
		Empty: "no epoch has been made yet",
	}
	for _, e := range s.Epochs {
		rows.Add(fmt.Sprint(e.Number), e.DEK, ago(e.Created), in(e.Expires), fmt.Sprint(e.Peers),
			epochProblem(&e),
			in(e.NextTry), e.KEK, cmp.Or(e.KEKVersion, "-"))
	}
	return rows.Write(w, wide)
}

// epochProblem is what is wrong with an epoch, the alarm first.
func epochProblem(e *epochs.Status) string {
	if e.Extended.IsZero() {
		return cmp.Or(e.Error, "-")
	}
	text := fmt.Sprintf("EXTENDED beyond its hard TTL: in use for another %s, at most %s",
		in(e.Extended), in(e.ExtendedMost))
	if e.Error != "" {
		text += "; " + e.Error
	}
	return text
}

func writeKeyPeers(w io.Writer, s *keys.Status, wide bool) error {
	rows := output.Rows{
		Header: []string{"PEER", "STATE", "SINCE", "EPOCH OUT/IN", "PQ", "PROBLEM", "NEXT TRY",
			"AGREED", "KEY ENDS IN", "LANES", "GROUP"},
		WideFrom: 6, Empty: "this node knows no other node",
	}
	for _, p := range s.Peers {
		quantum := "-" // the keys are a former agent's
		if p.Group != "" {
			quantum = map[bool]string{true: "yes", false: "no"}[p.PostQuantum]
		}
		rows.Add(p.Name, p.State, ago(p.Since), fmt.Sprintf("%d/%d", p.EpochTX, p.EpochRX), quantum,
			cmp.Or(p.LastError, p.Waits, "-"),
			in(p.NextTry), ago(p.Exchanged), in(p.Expires), number(p.Lanes), cmp.Or(p.Group, "-"))
	}
	return rows.Write(w, wide)
}
