package cli

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/keys/ca"
	"weft.dev/weft/internal/keys/nodeid"
)

func newCAServe(a *app) *cobra.Command {
	var dir, listen string
	valid := days(ca.DefaultValid)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Sign for nodes that join and renew",
		Long: `Run the authority's server in the foreground. Nodes join with a token and renew with their
certificate, over TLS 1.3 only. Ends on SIGTERM or SIGINT.

Nodes work on while it is away, until their certificates expire.`,
		Example: "  weft ca serve\n  weft ca serve --listen 192.0.2.1:4552 --valid 7d",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			authority, err := ca.Open(dir)
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(a.ErrOut, nil))
			server, err := authority.NewServer(time.Duration(valid), log)
			if err != nil {
				return err
			}
			listener, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", listen)
			if err != nil {
				return fmt.Errorf("serve certificates: %w", err)
			}
			log.Info("serving certificates", "listen", listener.Addr().String(), "trustDomain",
				authority.TrustDomain(), "root", authority.Pin())
			return server.Serve(cmd.Context(), listener)
		},
	}
	caDir(cmd.Flags(), &dir)
	cmd.Flags().StringVar(&listen, "listen", ":"+strconv.Itoa(ca.DefaultPort),
		"address to listen on")
	cmd.Flags().Var(&valid, "valid", "the life of the certificates that it signs")
	return cmd
}

// authorityView is what `ca show` prints.
type authorityView struct {
	Dir         string         `json:"dir"`
	TrustDomain string         `json:"trustDomain"`
	Pin         string         `json:"pin"`
	NotAfter    time.Time      `json:"notAfter"`
	Tokens      []ca.TokenInfo `json:"tokens"`
	// Nodes is the newest certificate of each node.
	Nodes []ca.Signed `json:"nodes"`
}

func newCAShow(a *app) *cobra.Command {
	var dir, cert string
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the authority, its tokens and what it signed, or one certificate",
		Long: `Show the authority: its root, the tokens that are known, and each node's newest certificate.
With --cert show a node's certificate file instead; it fails if that has expired.`,
		Example: "  weft ca show\n  weft ca show --cert /etc/weft/node.crt",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if cert != "" {
				return a.printCertificate(cert)
			}
			authority, err := ca.Open(dir)
			if err != nil {
				return err
			}
			return a.printAuthority(authority, dir)
		},
	}
	caDir(cmd.Flags(), &dir)
	cmd.Flags().StringVar(&cert, "cert", "", "a certificate's file")
	cmd.MarkFlagsMutuallyExclusive("dir", "cert")
	return cmd
}

func (a *app) printAuthority(authority *ca.Authority, dir string) error {
	tokens, err := authority.Tokens()
	if err != nil {
		return err
	}
	issued, err := authority.Issued()
	if err != nil {
		return err
	}
	view := authorityView{
		Dir: dir, TrustDomain: authority.TrustDomain(), Pin: authority.Pin(),
		NotAfter: authority.Root().NotAfter,
		Tokens:   append([]ca.TokenInfo{}, tokens...), Nodes: newest(issued),
	}
	return a.Print(view,
		func(w io.Writer, wide bool) error { return writeAuthority(w, view, wide) })
}

// newest keeps each node's last certificate, by name.
func newest(issued []ca.Signed) []ca.Signed {
	last := map[string]ca.Signed{}
	for _, one := range issued {
		last[one.Node] = one
	}
	nodes := make([]ca.Signed, 0, len(last))
	for _, one := range last {
		nodes = append(nodes, one)
	}
	slices.SortFunc(nodes, func(a, b ca.Signed) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	return nodes
}

func writeAuthority(w io.Writer, view authorityView, wide bool) error {
	fmt.Fprintf(w, "Authority of %s in %s\nroot %s, valid until %s\n", view.TrustDomain, view.Dir,
		view.Pin, day(view.NotAfter))
	now := time.Now()
	if len(view.Tokens) > 0 {
		fmt.Fprintln(w)
		rows := output.Rows{Header: []string{"TOKEN FOR", "STATE", "EXPIRES", "CREATED"},
			WideFrom: 3}
		for _, token := range view.Tokens {
			state := "open"
			switch {
			case token.Used != nil:
				state = "used " + day(*token.Used)
			case now.After(token.Expires):
				state = "expired"
			}
			rows.Add(token.Node, state, day(token.Expires), day(token.Created))
		}
		if err := rows.Write(w, wide); err != nil {
			return err
		}
	}
	fmt.Fprintln(w)
	rows := output.Rows{Header: []string{"NODE", "VALID UNTIL", "BY", "SIGNED", "SERIAL"},
		WideFrom: 3, Empty: "No node has a certificate yet."}
	for _, node := range view.Nodes {
		until := day(node.NotAfter)
		if now.After(node.NotAfter) {
			until += " (expired)"
		}
		rows.Add(node.Node, until, node.How, day(node.Time), node.Serial)
	}
	return rows.Write(w, wide)
}

func (a *app) printCertificate(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" {
		return fmt.Errorf("%s holds no certificate in PEM", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	info := nodeid.Inspect(cert)
	err = a.Print(info, func(w io.Writer, _ bool) error {
		id := info.ID
		if id == "" {
			id = fmt.Sprintf("(%d URIs: not a node's certificate)", len(cert.URIs))
		}
		_, err := fmt.Fprintf(w,
			"%s\nissuer %s, serial %s\nvalid from %s until %s, due for renewal from %s on\n",
			id, info.Issuer, info.Serial, day(info.NotBefore), day(info.NotAfter),
			day(info.RenewAfter))
		return err
	})
	if err == nil && time.Now().After(info.NotAfter) {
		return fmt.Errorf("%s: %w", path, nodeid.ErrExpired)
	}
	return err
}
