package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/keys/auditlog"
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
	cmd.AddCommand(newKeysStatus(a), newKeysRotate(a), newKeysHistory(a), newKeysInit(a),
		newKeysCheck(a))
	return cmd
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
				records, err := auditlog.Read(file, last)
				if err != nil {
					return err
				}
				return a.Print(records,
					func(w io.Writer, wide bool) error { return writeAudit(w, records, wide) })
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
			return a.Print(events,
				func(w io.Writer, wide bool) error { return writeKeyHistory(w, events, wide) })
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "read this audit log instead of asking the agent")
	cmd.Flags().IntVar(&last, "last", 30, "how many events; 0 for all")
	return cmd
}

func writeKeyHistory(w io.Writer, events []audit.Record, wide bool) error {
	rows := output.Rows{Header: []string{"TIME", "EVENT", "EPOCH", "PEER", "OUTCOME", "DETAIL",
		"TOOK"}, WideFrom: 6, Empty: "nothing has happened yet"}
	for _, e := range events {
		epoch := "-"
		if e.Epoch != 0 {
			epoch = strconv.FormatUint(e.Epoch, 10)
		}
		rows.Add(e.Time.Local().Format("2006-01-02 15:04:05.000"), e.Event, epoch,
			cmp.Or(e.Peer, "-"), cmp.Or(e.Outcome, "-"), cmp.Or(e.Detail, "-"), e.Latency.String())
	}
	return rows.Write(w, wide)
}

func writeAudit(w io.Writer, records []audit.Record, wide bool) error {
	rows := output.Rows{
		Header: []string{"TIME", "NODE", "OP", "EPOCH", "PEER", "OUTCOME", "DETAIL", "TOOK",
			"ATTEMPTS", "KEK", "VERSION"},
		WideFrom: 7, Empty: "nothing is recorded",
	}
	for _, r := range records {
		epoch := "-"
		if r.Epoch != 0 {
			epoch = strconv.FormatUint(r.Epoch, 10)
		}
		rows.Add(r.Time.Local().Format("2006-01-02 15:04:05.000"), r.Node, r.Op, epoch,
			cmp.Or(r.Peer, "-"), r.Outcome, cmp.Or(r.Detail, "-"),
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
			if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil &&
				!errors.Is(err, fs.ErrExist) {
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
			return a.Print(result, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w,
					"made %s (fingerprint %s): copy it to every node, mode 0600, and set keys.kek: file://%s\n", path, print, path)
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
			return a.Print(report, func(w io.Writer, _ bool) error {
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
	cmd.Flags().StringVarP(&path, "config", "c", config.DefaultPath,
		"the agent's configuration file")
	return cmd
}
