package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/front/admin"
)

func newEncrypt(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "encrypt",
		Short:   "How packets to other nodes are sealed",
		Long:    "How packets to other nodes are sealed, and with whom there are keys for it.",
		Example: "  weft encrypt status",
	}
	cmd.AddCommand(newEncryptStatus(a), newEncryptVerify(a))
	return cmd
}

func newEncryptStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show engine, epoch, peers and what was refused",
		Long: `Show what seals packets and why, the epoch in use, and for every other node whether there are
keys in both directions, how they were agreed on, and what passed them. STATE is up when both
directions run on the newest epoch. Errors are packets that were dropped, by name; ` + "`weft drops`" + ` has
the endpoints. The exit code is 1 while any peer has no keys.`,
		Example: "  weft encrypt status\n  weft encrypt status -o wide    # with times, addresses, paths and what is plain\n  weft encrypt status -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, (*admin.Client).Encrypt, writeEncryption, allSealed)
		},
	}
}

// allSealed says whether there are keys with every peer, both ways.
func allSealed(e *admin.Encryption) bool {
	return !slices.ContainsFunc(e.Peers,
		func(p admin.EncryptPeer) bool { return p.SendEpoch == 0 || p.ReceiveEpoch == 0 })
}

func writeEncryption(w io.Writer, e *admin.Encryption, wide bool) error {
	if e.Mode == "off" {
		_, err := fmt.Fprintln(w,
			"encryption is off (encryption.mode): packets to other nodes travel in cleartext")
		return err
	}
	rows := output.Rows{Header: []string{"Node:", e.Node}}
	add := func(name, value string) {
		if value != "" {
			rows.Add(name+":", value)
		}
	}
	add("Mode", e.Mode)
	engine := fmt.Sprintf("%s (asked for %s)", cmp.Or(e.Engine.Active, "none"), e.Engine.Asked)
	if e.Engine.Why != "" {
		engine += ": " + e.Engine.Why
	}
	add("Engine", engine)
	if aes := e.Engine.AES; aes.Driver != "" {
		text := aes.Driver + ", constant time"
		if !aes.ConstantTime {
			text = aes.Driver + ": NOT CONSTANT TIME, as encryption.allowTableAES allows"
		}
		add("AES", text)
	}
	if e.VMForks.Detection != "" {
		add("Snapshots",
			fmt.Sprintf("%s, %d noticed: %s", e.VMForks.Detection, e.VMForks.Generation,
				e.VMForks.Why))
	}
	add("On the wire", fmt.Sprintf("ESP in UDP port %d, AES-256-GCM, %d lanes", e.Port, e.Lanes))
	add("Bulk", bulkText(e.Sealer, e.Engine.NoSealer))
	add("Certificate", certificateText(e.Certificate))
	add("Epoch", epochText(e.Epoch))
	if !e.OldestKey.IsZero() {
		add("Oldest key", ago(e.OldestKey)+" old")
	}
	add("Sealed", traffic(e.Sent)+" with the keys in use")
	add("Opened", traffic(e.Received)+" with the keys in use")
	add("Handshakes",
		fmt.Sprintf("%d, %d failed; %d epochs made here", e.Handshakes, e.FailedHandshakes,
			e.Rotations))
	if wide || len(e.Plain) > 0 {
		add("Plain", cleartextSummary(e, wide))
	}
	for _, problem := range e.Problems {
		add("Problem", problem)
	}
	if err := rows.Write(w, true); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := writePeers(w, e.Peers, wide); err != nil {
		return err
	}
	if len(e.Errors) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	drops := output.Rows{Header: []string{"ERROR", "PACKETS", "WHAT HAPPENED"}}
	for _, d := range e.Errors {
		drops.Add(d.Reason, fmt.Sprint(d.Packets), d.Text)
	}
	return drops.Write(w, wide)
}

// bulkText says where what comes in bulk is sealed, and why not by a sealer. It is empty where none
// is asked for.
func bulkText(s *admin.Sealer, noSealer string) string {
	switch {
	case s == nil && noSealer == "":
		return ""
	case s == nil:
		return "by the hooks: " + noSealer
	case s.PID == 0:
		return "by the hooks: the sealer does not run"
	}
	text := fmt.Sprintf("sealer pid %d since %s: sealed %d packets in %d frames, opened %d in %d",
		s.PID, ago(s.Started),
		s.Sealed.Packets, s.Sealed.Frames, s.Opened.Packets, s.Opened.Frames)
	if s.Lost > 0 {
		text += fmt.Sprintf(", %d lost to a full queue", s.Lost)
	}
	if s.Starts > 1 {
		text += fmt.Sprintf(", started %d times", s.Starts)
	}
	return text
}

func writePeers(w io.Writer, peers []admin.EncryptPeer, wide bool) error {
	rows := output.Rows{
		Header: []string{"PEER", "STATE", "EPOCH OUT/IN", "PQ", "SEALED", "OPENED", "PATH",
			"PROBLEM",
			"ADDRESS", "MTU", "IDENTITIES", "AGREED", "KEY AGE", "EXPIRES", "GROUP"},
		WideFrom: 8, Empty: "this node knows no other node",
	}
	for _, p := range peers {
		quantum := "no"
		switch {
		case p.Handshake.IsZero():
			quantum = "-" // the keys are a former agent's
		case p.PostQuantum:
			quantum = "yes"
		}
		rows.Add(p.Node, p.State, fmt.Sprintf("%d/%d", p.SendEpoch, p.ReceiveEpoch), quantum,
			fmt.Sprint(p.Sent.Packets), fmt.Sprint(p.Received.Packets),
			pathText(p.Path), cmp.Or(p.Problem, "-"),
			text(p.Address), number(p.MTU), fmt.Sprint(p.Identities), ago(p.Handshake),
			ago(p.Installed), in(p.Expires), cmp.Or(p.Group, "-"))
	}
	return rows.Write(w, wide)
}

func certificateText(c *admin.NodeCertificate) string {
	switch {
	case c == nil:
		return ""
	case c.Problem != "":
		return c.Problem
	}
	return fmt.Sprintf("%s, expires in %s", c.ID, in(c.NotAfter))
}

func epochText(e *admin.EncryptEpoch) string {
	if e == nil {
		return "none"
	}
	return fmt.Sprintf("%d, %s old, ends in %s, wrapped by %s", e.Number, ago(e.Created),
		in(e.Expires), e.KEK)
}

// cleartextSummary counts what may be plain, and lists it when there is room.
func cleartextSummary(e *admin.Encryption, wide bool) string {
	const few = 4
	list := e.Plain
	switch {
	case len(list) == 0:
		return "nothing"
	case !wide && len(list) > few:
		return fmt.Sprintf("%s and %d more (-o wide)", output.Join(list[:few]), len(list)-few)
	}
	return output.Join(list)
}

func pathText(p *admin.PathCheck) string {
	switch {
	case p == nil:
		return "-"
	case p.Probing:
		return "probing"
	case p.Fits == 0:
		return "no answer"
	case p.Fits < p.Configured:
		return fmt.Sprintf("%d of %d", p.Fits, p.Configured)
	}
	return fmt.Sprint(p.Fits)
}

func traffic(t datapath.Traffic) string {
	return fmt.Sprintf("%d packets, %d bytes", t.Packets, t.Bytes)
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// ago is how long ago something was, "-" if never.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(time.Since(t))
}

// in is how long something still takes.
func in(t time.Time) string {
	switch d := time.Until(t); {
	case t.IsZero():
		return "-"
	case d < 0:
		return "over"
	default:
		return span(d)
	}
}

// span is a time as people say it: two units at most.
func span(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return d.String()
}
