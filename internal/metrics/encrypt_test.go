package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"weft.dev/weft/internal/datapath"
)

// rotating is a source whose keys change from scrape to scrape.
type rotating struct{ keys []Key }

func (r *rotating) Metrics() (Snapshot, error) {
	return Snapshot{Encryption: &Encryption{Keys: r.keys, Reasons: map[string]bool{"no_key": true}}}, nil
}

func key(id uint64, out bool, packets uint64) Key {
	return Key{Node: "b", Out: out, Epoch: id, ID: id, Traffic: datapath.Traffic{Packets: packets, Bytes: 10 * packets}}
}

func TestSealedOnlyGrows(t *testing.T) {
	source := &rotating{}
	collector := NewCollector(source, []string{"no_key"})
	for _, step := range []struct {
		keys    []Key
		out, in string
	}{
		{[]Key{key(1, true, 5), key(1, false, 2)}, "5", "2"},
		{[]Key{key(1, true, 7), key(1, false, 2)}, "7", "2"},
		{[]Key{key(1, true, 8), key(2, true, 3), key(1, false, 2)}, "11", "2"}, // a new epoch beside the old
		{[]Key{key(2, true, 4), key(2, false, 6)}, "12", "8"},                  // the old one is gone
		{nil, "12", "8"}, // the peer is gone
		{[]Key{key(2, true, 1)}, "13", "8"},
	} {
		source.keys = step.keys
		want := strings.NewReplacer("OUT", step.out, "IN", step.in).Replace(`# HELP weft_encrypt_packets_total Packets sealed (out) and opened (in), since the agent started.
# TYPE weft_encrypt_packets_total counter
weft_encrypt_packets_total{direction="in"} IN
weft_encrypt_packets_total{direction="out"} OUT
`)
		if err := testutil.CollectAndCompare(collector, strings.NewReader(want), "weft_encrypt_packets_total"); err != nil {
			t.Error(err)
		}
	}
}
