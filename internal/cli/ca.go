package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/keys/ca"
	"weft.dev/weft/internal/keys/nodeid"
)

// tokenEnv is where `ca join` looks for a token that is not on the command line.
const tokenEnv = "WEFT_JOIN_TOKEN"

func newCA(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "Nodes' certificates: a small authority for labs and clusters of one owner",
		Long: `Make and renew the certificates by which nodes know each other.

On one machine, the authority: "init" once, "serve", and "token" for each node that joins.
On each node: "join" with its token; the agent renews the certificate from then on.
"issue" makes a certificate without a server. Whoever has SPIRE or an authority of their
own needs none of this: see docs/node-certificates.md.

Nobody can revoke a certificate: a node is shut out by removing its Node object.`,
		Example: "  weft ca init --trust-domain weft.local\n  weft ca serve &\n  weft ca token node-1\n  weft ca join --server ca.example --token-file -    # on node-1",
	}
	cmd.AddCommand(newCAInit(a), newCAIssue(a), newCAToken(a), newCAServe(a), newCAJoin(a),
		newCARenew(a), newCAShow(a))
	return cmd
}

// days is a flag for long times: a Go duration, or whole days as in 30d.
type days time.Duration

// Set implements pflag.Value.
func (d *days) Set(text string) error {
	if number, found := strings.CutSuffix(text, "d"); found {
		count, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return errors.New("want days as in 30d, or a duration as in 12h")
		}
		*d = days(time.Duration(count) * 24 * time.Hour)
		return nil
	}
	parsed, err := time.ParseDuration(text)
	if err != nil || parsed <= 0 {
		return errors.New("want days as in 30d, or a duration as in 12h")
	}
	*d = days(parsed)
	return nil
}

// Type implements pflag.Value.
func (d *days) Type() string { return "days" }

// String implements pflag.Value.
func (d *days) String() string {
	whole := time.Duration(*d)
	if whole != 0 && whole%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", whole/(24*time.Hour))
	}
	return whole.String()
}

func caDir(flags *pflag.FlagSet, dir *string) {
	flags.StringVar(dir, "dir", ca.DefaultDir, "the authority's directory")
}

func certPaths(flags *pflag.FlagSet, paths *nodeid.Paths) {
	standard := nodeid.DefaultPaths()
	flags.StringVar(&paths.Cert, "cert", standard.Cert, "the node's certificate")
	flags.StringVar(&paths.Key, "key", standard.Key, "its private key")
	flags.StringVar(&paths.Bundle, "bundle", standard.Bundle, "the roots to trust")
}

func newCAInit(a *app) *cobra.Command {
	var dir, trustDomain string
	valid := days(ca.DefaultRootValid)
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make an authority",
		Long: `Make an authority: a root's key and certificate in a directory of their own.

Whoever reads the key can be any node. Keep the directory on a machine that runs nothing
else, and back it up where backups are encrypted.`,
		Example: "  weft ca init --trust-domain prod.example",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			authority, err := ca.Init(dir, trustDomain, time.Duration(valid))
			if err != nil {
				return err
			}
			return a.printAuthority(authority, dir)
		},
	}
	caDir(cmd.Flags(), &dir)
	cmd.Flags().StringVar(&trustDomain, "trust-domain", nodeid.DefaultTrustDomain,
		"the nodes' trust domain, as keys.trustDomain in their configuration")
	cmd.Flags().Var(&valid, "valid", "the root's life")
	return cmd
}

// written is what a verb says of a certificate that it put somewhere.
type written struct {
	nodeid.Info
	Cert   string `json:"cert"`
	Key    string `json:"key"`
	Bundle string `json:"bundle"`
}

func (a *app) printWritten(info nodeid.Info, paths nodeid.Paths) error {
	value := written{info, paths.Cert, paths.Key, paths.Bundle}
	return a.Print(value, func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w,
			"%s\nvalid until %s, renewed from %s on\ncertificate %s, key %s, roots %s\n",
			info.ID, day(info.NotAfter), day(info.RenewAfter), paths.Cert, paths.Key, paths.Bundle)
		return err
	})
}

func newCAIssue(a *app) *cobra.Command {
	var dir, out string
	var force bool
	valid := days(ca.DefaultValid)
	cmd := &cobra.Command{
		Use:   "issue NODE",
		Short: "Make a node's key and certificate",
		Long: `Make a key and a certificate for a node, in files to be copied to it.

Where the node can reach "weft ca serve", "join" is better: the key is then made on the
node, and the certificate is renewed by itself. This one is not.`,
		Example: "  weft ca issue node-1 --out ./node-1\n  weft ca issue node-1 --out ./node-1 --valid 90d --force",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			authority, err := ca.Open(dir)
			if err != nil {
				return err
			}
			if out == "" {
				out = args[0]
			}
			paths := nodeid.Paths{Cert: filepath.Join(out, "node.crt"),
				Key: filepath.Join(out, "node.key"), Bundle: filepath.Join(out, "ca.crt")}
			if _, err := os.Lstat(paths.Key); err == nil && !force {
				return fmt.Errorf("%s is there already: use --force to replace it", paths.Key)
			}
			identity, err := authority.Issue(args[0], time.Duration(valid))
			if err != nil {
				return err
			}
			defer identity.Zero()
			if err := identity.Write(paths); err != nil {
				return err
			}
			return a.printWritten(nodeid.Inspect(identity.Leaf), paths)
		},
	}
	caDir(cmd.Flags(), &dir)
	cmd.Flags().StringVar(&out, "out", "",
		"directory for node.crt, node.key and ca.crt (default: the node's name)")
	cmd.Flags().Var(&valid, "valid", "the certificate's life")
	cmd.Flags().BoolVar(&force, "force", false, "replace files that are there")
	return cmd
}

func newCAToken(a *app) *cobra.Command {
	var dir string
	valid := days(ca.DefaultTokenValid)
	cmd := &cobra.Command{
		Use:   "token NODE",
		Short: "Make a token with which a node joins once",
		Long: `Make a token for "weft ca join". It works once, for that node's name, until it expires, and
tells the node which root to trust. Of the token only a hash is kept.

Pass it on as you would a password: who has it first becomes that node.`,
		Example: "  weft ca token node-1\n  weft ca token node-1 --valid 15m | ssh node-1 weft ca join --server ca.example --token-file -",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			authority, err := ca.Open(dir)
			if err != nil {
				return err
			}
			token, info, err := authority.NewToken(args[0], time.Duration(valid))
			if err != nil {
				return err
			}
			value := struct {
				Token string `json:"token"`
				ca.TokenInfo
			}{token, info}
			return a.Print(value, func(w io.Writer, _ bool) error {
				// Only the token goes to standard output, so that it can be piped.
				fmt.Fprintf(a.ErrOut, "For node %s, once, until %s:\n", info.Node,
					day(info.Expires))
				_, err := fmt.Fprintln(w, token)
				return err
			})
		},
	}
	caDir(cmd.Flags(), &dir)
	cmd.Flags().Var(&valid, "valid", "how long it may be used")
	return cmd
}

func newCAJoin(a *app) *cobra.Command {
	var options ca.JoinOptions
	var token, file string
	cmd := &cobra.Command{
		Use:   "join --server HOST[:PORT]",
		Short: "Get this node's certificate with a token",
		Long: `Make this node's key, and have its certificate signed by "weft ca serve" for a token. The key
never leaves this machine. The token names the node and its root: nothing else is needed.

Give the token with --token-file (- is standard input) or in ` + tokenEnv + `; one given with
--token is seen by every user of this machine while the verb runs.`,
		Example: "  weft ca join --server ca.example --token-file token\n  " + tokenEnv +
			"=weft-join-... weft ca join --server 192.0.2.1:4552",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if options.Token, err = readToken(token, file, cmd.InOrStdin()); err != nil {
				return err
			}
			leaf, err := ca.Join(cmd.Context(), options)
			if err != nil {
				return err
			}
			return a.printWritten(nodeid.Inspect(leaf), options.Paths)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&options.Server, "server", "",
		fmt.Sprintf("where the authority serves; the port is %d unless given", ca.DefaultPort))
	flags.StringVar(&token, "token", "", "the token")
	flags.StringVar(&file, "token-file", "", "file with the token, - for standard input")
	flags.BoolVar(&options.Force, "force", false, "replace a certificate that is there")
	certPaths(flags, &options.Paths)
	_ = cmd.MarkFlagRequired("server")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
	return cmd
}

// readToken finds the token in the one place where it was given.
func readToken(token, file string, in io.Reader) (string, error) {
	switch {
	case file == "-":
		text, err := io.ReadAll(io.LimitReader(in, 4096))
		return string(text), err
	case file != "":
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
		return string(text), nil
	case token == "":
		token = os.Getenv(tokenEnv)
	}
	if token == "" {
		return "", cmdutil.UsageError("no token: give --token-file or %s, with what `weft ca token` printed", tokenEnv)
	}
	return token, nil
}

func newCARenew(a *app) *cobra.Command {
	var paths nodeid.Paths
	var server string
	cmd := &cobra.Command{
		Use:   "renew",
		Short: "Renew this node's certificate now",
		Long: `Get a new certificate for a new key from "weft ca serve", shown the present one, which must
still be valid. A running agent does this by itself when two thirds of its life are over,
and takes up the new files without a restart.`,
		Example: "  weft ca renew\n  weft ca renew --server ca.example",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			leaf, err := ca.Renew(cmd.Context(), paths, server)
			if err != nil {
				return err
			}
			return a.printWritten(nodeid.Inspect(leaf), paths)
		},
	}
	cmd.Flags().StringVar(&server, "server", "",
		"where the authority serves (default: where the node joined)")
	certPaths(cmd.Flags(), &paths)
	return cmd
}

func day(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }
