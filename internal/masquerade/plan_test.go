package masquerade

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// text writes a plan as lines, as a person would read the table.
func (p *plan) text() []string {
	lines := []string{"table " + p.table, fmt.Sprint("uplinks ", p.uplinks)}
	for _, r := range p.rules {
		lines = append(lines, fmt.Sprint("pods", r.suffix, " ", r.pods),
			fmt.Sprint("inside", r.suffix, " ", r.inside))
	}
	return lines
}

func TestPlan(t *testing.T) {
	for _, test := range []struct {
		what    string
		options Options
		want    []string
	}{
		{
			"both families",
			Options{Uplinks: []string{"eth0"}, PodCIDRs: prefixes("10.1.0.0/24", "fd00:1::/64"),
				Except: prefixes("10.1.1.0/24", "192.0.2.2/32")},
			[]string{
				"table weft", "uplinks [eth0]",
				"pods4 [10.1.0.0-10.1.0.255]",
				"inside4 [10.1.0.0-10.1.1.255 192.0.2.2-192.0.2.2 224.0.0.0-239.255.255.255 255.255.255.255-255.255.255.255]",
				"pods6 [fd00:1::-fd00:1::ffff:ffff:ffff:ffff]",
				"inside6 [fd00:1::-fd00:1::ffff:ffff:ffff:ffff ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]",
			},
		},
		{
			"one family only, of an instance",
			Options{Instance: "lab-a", Uplinks: []string{"w1", "w0", "w1"},
				PodCIDRs: prefixes("fd00:1::/64"), Except: prefixes("10.0.0.0/8")},
			[]string{
				"table weft-lab-a", "uplinks [w0 w1]",
				"pods6 [fd00:1::-fd00:1::ffff:ffff:ffff:ffff]",
				"inside6 [fd00:1::-fd00:1::ffff:ffff:ffff:ffff ff00::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]",
			},
		},
		{"no pods", Options{Uplinks: []string{"eth0"}, Except: prefixes("10.0.0.0/8")},
			[]string{"table weft", "uplinks [eth0]"}},
		{
			"everything excepted",
			Options{Uplinks: []string{"eth0"}, PodCIDRs: prefixes("10.1.0.0/24"),
				Except: prefixes("0.0.0.0/0", "10.0.0.0/8")},
			[]string{"table weft", "uplinks [eth0]", "pods4 [10.1.0.0-10.1.0.255]",
				"inside4 [0.0.0.0-255.255.255.255]"},
		},
	} {
		p, err := newPlan(test.options)
		if err != nil {
			t.Errorf("%s: %v", test.what, err)
			continue
		}
		if diff := cmp.Diff(test.want, p.text()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.what, diff)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	for want, uplinks := range map[string][]string{
		"set uplinks":                   nil,
		`"" is not`:                     {"eth0", ""},
		`"sixteen-bytes-xx" is not the`: {"sixteen-bytes-xx"},
	} {
		if _, err := newPlan(Options{Uplinks: uplinks}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", uplinks, err)
		}
	}
}

func TestMerge(t *testing.T) {
	for _, test := range []struct {
		prefixes []netip.Prefix
		want     string
	}{
		{nil, "[]"},
		{prefixes("10.0.1.0/24", "10.0.0.0/24"), "[10.0.0.0-10.0.1.255]"},
		{prefixes("10.0.0.0/8", "10.1.0.0/24", "10.255.255.255/32"), "[10.0.0.0-10.255.255.255]"},
		{prefixes("10.0.0.0/24", "10.0.2.0/24"), "[10.0.0.0-10.0.0.255 10.0.2.0-10.0.2.255]"},
		{prefixes("10.0.0.9/24"), "[10.0.0.0-10.0.0.255]"},
		{prefixes("255.255.255.0/24", "255.255.255.255/32"), "[255.255.255.0-255.255.255.255]"},
		{prefixes("::/0", "fd00::/8"), "[::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]"},
	} {
		if got := fmt.Sprint(merge(test.prefixes)); got != test.want {
			t.Errorf("%v: %s, want %s", test.prefixes, got, test.want)
		}
	}
}

func TestRangeElements(t *testing.T) {
	elements := rangeElements(merge(prefixes("10.0.0.0/24", "255.255.255.255/32")))
	var got []string
	for _, e := range elements {
		got = append(got, fmt.Sprint(e.Key, e.IntervalEnd))
	}
	want := []string{"[10 0 0 0] false", "[10 0 1 0] true", "[255 255 255 255] false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEqual(t *testing.T) {
	base := Options{Instance: "a", Uplinks: []string{"w0"}, PodCIDRs: prefixes("10.1.0.0/24"),
		Except: prefixes("10.2.0.0/24")}
	same, other := base, base
	other.Except = prefixes("10.3.0.0/24")
	if !base.Equal(&same) || base.Equal(&other) || base.Equal(nil) ||
		(*Options)(nil).Equal(&base) || !(*Options)(nil).Equal(nil) {
		t.Error("Equal is wrong")
	}
}
