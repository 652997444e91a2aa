package masquerade

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/nftables"
)

// TestIntact: rules, or the whole table, that somebody else has removed are missed.
func TestIntact(t *testing.T) {
	b := newHarness(t)
	options := &Options{Instance: "intact", Uplinks: []string{"wire0"},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"),
			netip.MustParsePrefix("fd00:1::/64")}}
	is := func(want bool, when string) {
		t.Helper()
		if got, err := Intact(options); err != nil || got != want {
			t.Errorf("%s: intact %v, %v", when, got, err)
		}
	}
	b.do(t, b.node, func() error {
		is(false, "before")
		conn, err := open()
		if err != nil {
			return err
		}
		for what, remove := range map[string]func(*nftables.Table){
			"table": conn.DelTable,
			"rules": conn.FlushTable,
		} {
			if err := Apply(*options); err != nil {
				return err
			}
			is(true, "applied")
			remove(&nftables.Table{Family: nftables.TableFamilyINet,
				Name: TableName(options.Instance)})
			if err := conn.Flush(); err != nil {
				return err
			}
			is(false, "without "+what)
		}
		return errors.Join(Apply(*options), Remove(options.Instance))
	})
}
