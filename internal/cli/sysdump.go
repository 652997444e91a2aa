package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/version"
)

// toolTimeout bounds each command of a dump.
const toolTimeout = 10 * time.Second

func newSysdump(a *app) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "sysdump",
		Short: "Put everything that a bug report needs into one archive",
		Long: `Put everything that a bug report needs into one archive: the agent's state, endpoints, nodes,
flow table, counters, events, log and configuration, and what ip, nft, ethtool, ss and bpftool say in its
network namespace. It holds addresses and names of pods, and no secrets: read it before you
hand it on.`,
		Example: "  weft sysdump\n  weft sysdump -o /tmp/node-a.tar.gz",
		Args:    cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			// -o is every verb's output format; here a file's name is taken for what it is.
			if _, err := output.Parse(a.Format); err != nil {
				if !strings.HasSuffix(a.Format, "gz") || file != "" {
					return &cmdutil.ExitError{Code: cmdutil.ExitUsage, Cause: err}
				}
				file, a.Format = a.Format, string(output.Table)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				file = "weft-sysdump-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			files, err := gatherDump(cmd.Context(), client)
			if err != nil {
				return err
			}
			if err := writeArchive(file, files); err != nil {
				return err
			}
			result := map[string]any{"file": file, "entries": slices.Sorted(maps.Keys(files))}
			return a.Print(result, func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "wrote %s with %d files\n", file, len(files))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&file, "file", "",
		"the archive, also as -o FILE.tar.gz (default weft-sysdump-TIME.tar.gz here)")
	_ = cmd.MarkFlagFilename("file", "tar.gz")
	return cmd
}

// gatherDump collects the archive's files by name.
func gatherDump(ctx context.Context, client *admin.Client) (map[string][]byte, error) {
	dump, err := client.Sysdump(ctx)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for name, value := range dump {
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, value, "", "  "); err != nil {
			pretty.Write(value)
		}
		pretty.WriteByte('\n')
		files["agent/"+name+".json"] = pretty.Bytes()
	}
	own, err := json.MarshalIndent(version.Get(), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode version: %w", err)
	}
	files["cli-version.json"] = append(own, '\n')
	var status admin.Status
	if err := json.Unmarshal(dump["status"], &status); err != nil || status.Paths.NetNS == "" {
		return files, nil
	}
	for name, answer := range runTools(ctx, &status) {
		files["node/"+name] = answer
	}
	return files, nil
}

// tools are what is asked on the node, by the name of the file for the answer.
func tools(status *admin.Status) map[string][]string {
	all := map[string][]string{
		"ip-address.txt":    {"ip", "-d", "-s", "address"},
		"ip-route4.txt":     {"ip", "-4", "route", "show", "table", "all"},
		"ip-route6.txt":     {"ip", "-6", "route", "show", "table", "all"},
		"ip-rule4.txt":      {"ip", "-4", "rule"},
		"ip-rule6.txt":      {"ip", "-6", "rule"},
		"ip-neighbours.txt": {"ip", "neighbour"},
		"nft.txt":           {"nft", "list", "ruleset"},
		"iptables.txt":      {"iptables-legacy-save"},
		"sockets.txt":       {"ss", "-s"},
		"sysctl.txt": {"sysctl", "net.ipv4.ip_forward", "net.ipv4.conf.all",
			"net.ipv6.conf.all"},
		"bpf-net.txt":      {"bpftool", "net", "show"},
		"bpf-links.txt":    {"bpftool", "link", "show"},
		"bpf-maps.txt":     {"bpftool", "map", "show"},
		"bpf-programs.txt": {"bpftool", "prog", "show"},
		"pins.txt":         {"ls", "-lR", status.Paths.BPF},
		"kernel.txt":       {"uname", "-a"},
	}
	for _, uplink := range status.Uplinks {
		name := filepath.Base(uplink)
		all["ethtool-"+name+".txt"] = []string{"ethtool", "-k", uplink}
		all["ethtool-driver-"+name+".txt"] = []string{"ethtool", "-i", uplink}
	}
	for _, link := range status.Links {
		if _, done := all["ethtool-"+filepath.Base(link.Interface)+".txt"]; !done {
			all["ethtool-"+filepath.Base(link.Interface)+".txt"] = []string{"ethtool", "-k",
				link.Interface}
		}
	}
	return all
}

// runTools runs the tools that exist in the agent's network namespace.
func runTools(ctx context.Context, status *admin.Status) map[string][]byte {
	outputs := map[string][]byte{}
	for name, argv := range tools(status) {
		if _, err := exec.LookPath(argv[0]); err != nil {
			continue
		}
		var answer bytes.Buffer
		fmt.Fprintf(&answer, "# %q\n", argv)
		toolCtx, cancel := context.WithTimeout(ctx, toolTimeout)
		command := exec.CommandContext(toolCtx, argv[0], argv[1:]...)
		command.Stdout, command.Stderr = &answer, &answer
		if err := netns.Do(status.Paths.NetNS, command.Run); err != nil {
			fmt.Fprintf(&answer, "# %v\n", err)
		}
		cancel()
		outputs[name] = answer.Bytes()
	}
	return outputs
}

// writeArchive writes the files below one directory, readable by the owner only.
func writeArchive(path string, files map[string][]byte) (err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create archive: %w", err)
	}
	defer func() {
		if closeErr := out.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("write archive: %w", closeErr)
		}
	}()
	compressed := gzip.NewWriter(out)
	archive := tar.NewWriter(compressed)
	now := time.Now()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		header := &tar.Header{Name: "weft-sysdump/" + name, Mode: 0o600,
			Size: int64(len(files[name])), ModTime: now}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write archive: %w", err)
		}
		if _, err := archive.Write(files[name]); err != nil {
			return fmt.Errorf("write archive: %w", err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	if err := compressed.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}
