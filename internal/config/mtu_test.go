package config

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestOuterIPv6(t *testing.T) {
	v4, v6, both := addrs("192.0.2.1"), addrs("2001:db8::1"), addrs("192.0.2.1", "2001:db8::1")
	for _, tt := range []struct {
		name  string
		own   []netip.Addr
		peers [][]netip.Addr
		want  bool
	}{
		{"alone", both, nil, false}, {"alone, IPv6", v6, nil, true},
		{"all both", both, [][]netip.Addr{both, both}, false},
		{"a peer without IPv4", both, [][]netip.Addr{both, v6}, true},
		{"never reached", v4, [][]netip.Addr{v6}, false},
		{"IPv6 here", v6, [][]netip.Addr{both}, true},
	} {
		if got := OuterIPv6(tt.own, tt.peers); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func TestPodMTU(t *testing.T) {
	for _, tt := range []struct {
		name     string
		mode     string
		mtu, up  int
		outer6   bool
		want     int
		mistaken string
	}{
		{"default", EncryptionStrict, 0, 1500, false, 1438, ""},
		{"over IPv6", EncryptionStrict, 0, 1500, true, 1418, ""},
		{"plain", EncryptionOff, 0, 1500, true, 1500, ""},
		{"smaller", EncryptionStrict, 1400, 1500, false, 1400, ""},
		{"too large", EncryptionStrict, 1439, 1500, false, 0,
			"mtu: is 1439: sealed, it does not fit into the uplinks' MTU 1500: write at most 1438"},
		{"too large over IPv6", EncryptionStrict, 1438, 1500, true, 0, "write at most 1418"},
		{"larger than the uplinks, plain", EncryptionOff, 9000, 1500, false, 9000, ""},
		{"tiny uplink", EncryptionStrict, 0, 600, false, 0, "leaves pods 538"},
	} {
		c := Default()
		c.MTU, c.Encryption.Mode = tt.mtu, tt.mode
		got, err := c.PodMTU(tt.up, tt.outer6)
		if got != tt.want || (err == nil) != (tt.mistaken == "") || err != nil &&
			!strings.Contains(err.Error(), tt.mistaken) {
			t.Errorf("%s: %d %v", tt.name, got, err)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, span := range map[string]time.Duration{"24h": 24 * time.Hour,
		"1h30m": 90 * time.Minute, "30s": 30 * time.Second, "0s": 0, "1m30s": 90 * time.Second,
		"10m": 10 * time.Minute, "1h0m1s": time.Hour + time.Second} {
		if got := Duration(span).String(); got != text {
			t.Errorf("%s is written %s", text, got)
		}
	}
}
