package nodeid_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
	"weft.dev/weft/internal/keys/nodeid/nodeidtest"
)

func check(authority *nodeidtest.Authority) nodeid.Check {
	return nodeid.Check{Roots: authority.Pool, TrustDomain: nodeidtest.TrustDomain,
		Role: nodeid.Client, Now: time.Now()}
}

func TestVerify(t *testing.T) {
	authority, foreign := nodeidtest.NewAuthority(t), nodeidtest.NewAuthority(t)
	uri := func(text string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			parsed, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = []*url.URL{parsed}
		}
	}
	good := authority.Node(t, "n1", nil)
	for _, c := range []struct {
		name   string
		cert   *tls.Certificate
		change func(*nodeid.Check)
		want   error
		kind   string
	}{
		{"good", good, nil, nil, ""},
		{"good, expected", good, func(c *nodeid.Check) { c.Node = "n1" }, nil, ""},
		{"good, as a server", good, func(c *nodeid.Check) { c.Role = nodeid.Server }, nil, ""},
		{"expired", good, func(c *nodeid.Check) { c.Now = c.Now.AddDate(0, 0, 2) },
			nodeid.ErrExpired, "expired"},
		{"not yet valid", good, func(c *nodeid.Check) { c.Now = c.Now.AddDate(0, 0, -2) },
			nodeid.ErrNotYetValid, "not_yet_valid"},
		{"foreign", foreign.Node(t, "n1", nil), nil, nodeid.ErrForeign, "foreign"},
		{"no roots", good, func(c *nodeid.Check) { c.Roots = nil }, nodeid.ErrForeign, "foreign"},
		{"empty roots", good, func(c *nodeid.Check) { c.Roots = x509.NewCertPool() },
			nodeid.ErrForeign, "foreign"},
		{"another node", good, func(c *nodeid.Check) { c.Node = "n2" }, nodeid.ErrWrongNode,
			"wrong_node"},
		{"another trust domain", good, func(c *nodeid.Check) { c.TrustDomain = "other" },
			nodeid.ErrTrustDomain, "trust_domain"},
		{"two URIs",
			authority.Node(t, "n1",
				func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"no URI", authority.Node(t, "n1", func(c *x509.Certificate) { c.URIs = nil }), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"a workload", authority.Node(t, "n1", uri("spiffe://test.weft/ns/a/sa/node")), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"only /node", authority.Node(t, "n1", uri("spiffe://test.weft/node")), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"deeper", authority.Node(t, "n1", uri("spiffe://test.weft/node/a/b")), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"upper case", authority.Node(t, "n1", uri("spiffe://test.weft/node/N1")), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"a query", authority.Node(t, "n1", uri("spiffe://test.weft/node/n1?x=1")), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"not SPIFFE", authority.Node(t, "n1", uri("https://test.weft/node/n1")), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"an authority", authority.Node(t, "n1", func(c *x509.Certificate) { c.IsCA = true }), nil,
			nodeid.ErrNotNode, "not_a_node"},
		{"client only",
			authority.Node(t, "n1",
				func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }),
			func(c *nodeid.Check) { c.Role = nodeid.Server }, nodeid.ErrUsage, "usage"},
		{"no signatures",
			authority.Node(t, "n1",
				func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyAgreement }), nil,
			nodeid.ErrUsage, "usage"},
		{"nothing", &tls.Certificate{}, nil, nodeid.ErrNoCertificate, "no_certificate"},
	} {
		how := check(authority)
		if c.change != nil {
			c.change(&how)
		}
		var chain []*x509.Certificate
		if c.cert.Leaf != nil {
			chain = append(chain, c.cert.Leaf)
		}
		name, err := how.Verify(chain)
		if !errors.Is(err, c.want) || nodeid.Kind(err) != c.kind || (err == nil) != (name == "n1") {
			t.Errorf("%s: %q, %v (%s)", c.name, name, err, nodeid.Kind(err))
		}
	}
}

func TestParseAndURI(t *testing.T) {
	uri, err := nodeid.URI("weft.local", "node-1.rack")
	if err != nil || uri.String() != "spiffe://weft.local/node/node-1.rack" {
		t.Errorf("%v, %v", uri, err)
	}
	td, node, err := nodeid.Parse(uri)
	if td != "weft.local" || node != "node-1.rack" || err != nil {
		t.Errorf("%q %q %v", td, node, err)
	}
	for _, wrong := range [][2]string{{"", "n"}, {"UPPER", "n"}, {"spiffe://td", "n"}, {"td", ""},
		{"td", "a/b"}, {"td", "A"}, {"a b", "n"}} {
		if _, err := nodeid.URI(wrong[0], wrong[1]); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

func TestInspect(t *testing.T) {
	leaf := nodeidtest.NewAuthority(t).Node(t, "n1", nil).Leaf
	info := nodeid.Inspect(leaf)
	if info.Node != "n1" || info.ID != "spiffe://test.weft/node/n1" || info.Serial == "" ||
		!strings.Contains(info.Issuer, "test authority") {
		t.Errorf("%+v", info)
	}
	if life := leaf.NotAfter.Sub(leaf.NotBefore); info.RenewAfter.Sub(leaf.NotBefore) != life/3*2 {
		t.Errorf("renew after %v of %v", info.RenewAfter, life)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("spiffe://td/node/a")
	f.Add("spiffe://td/node/../a")
	f.Fuzz(func(t *testing.T, text string) {
		uri, err := url.Parse(text)
		if err != nil {
			return
		}
		td, node, err := nodeid.Parse(uri)
		if err != nil {
			return
		}
		if back, err := nodeid.URI(td, node); err != nil || back.String() != uri.String() {
			t.Errorf("%q: %v, %v", text, back, err)
		}
	})
}
