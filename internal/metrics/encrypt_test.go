package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/keys/kek"
)

// rotating is a source whose keys change from scrape to scrape.
type rotating struct{ keys []Key }

func (r *rotating) Metrics() (Snapshot, error) {
	return Snapshot{Encryption: &Encryption{Keys: r.keys,
		Reasons: map[string]bool{"no_key": true}}}, nil
}

func key(id uint64, out bool, packets uint64) Key {
	return Key{Node: "b", Out: out, Epoch: id, ID: id,
		Traffic: datapath.Traffic{Packets: packets, Bytes: 10 * packets}}
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
		{[]Key{key(1, true, 8), key(2, true, 3), key(1, false, 2)}, "11",
			"2"}, // a new epoch beside the old
		{[]Key{key(2, true, 4), key(2, false, 6)}, "12",
			"8"}, // the old one is gone
		{nil, "12", "8"}, // the peer is gone
		{[]Key{key(2, true, 1)}, "13", "8"},
	} {
		source.keys = step.keys
		want := strings.NewReplacer("OUT", step.out, "IN", step.in).Replace(`# HELP weft_encrypt_packets_total Packets sealed (out) and opened (in), since the agent started.
# TYPE weft_encrypt_packets_total counter
weft_encrypt_packets_total{direction="in"} IN
weft_encrypt_packets_total{direction="out"} OUT
`)
		if err := testutil.CollectAndCompare(collector, strings.NewReader(want),
			"weft_encrypt_packets_total"); err != nil {
			t.Error(err)
		}
	}
}

// asked is a source whose KMS was asked.
type asked struct{ failing string }

func (a asked) Metrics() (Snapshot, error) {
	meter := kek.NewMeter()
	for took, outcome := range map[time.Duration]string{
		50 * time.Millisecond: "ok", 500 * time.Millisecond: "ok",
		2950 * time.Millisecond: "denied",
	} {
		meter.Observe(kek.Attempt{Op: "unwrap", Outcome: outcome, Elapsed: took})
	}
	return Snapshot{Encryption: &Encryption{
		TTLRatio: 0.5, Extended: a.failing != "", Rewraps: 1,
		UnwrapErrors: map[string]uint64{"denied": 2},
		KMSFailing:   a.failing, KMS: meter,
	}}, nil
}

// kmsText is the text of both metrics of calls to the KMS: every operation and outcome is there.
func kmsText() string {
	bounds := []string{"0.001", "0.005", "0.025", "0.1", "0.25", "0.5", "1", "2.5", "5", "10",
		"+Inf"}
	unwraps := []int{0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3}
	out := "# HELP weft_keys_kms_request_seconds How long calls to the KMS took.\n" +
		"# TYPE weft_keys_kms_request_seconds histogram\n"
	for _, op := range []string{"identity", "unwrap", "wrap"} {
		sum, count := "0", 0
		for i, bound := range bounds {
			if op == "unwrap" {
				sum, count = "3.5", unwraps[i]
			}
			out += fmt.Sprintf("weft_keys_kms_request_seconds_bucket{op=%q,le=%q} %d\n", op, bound,
				count)
		}
		out += fmt.Sprintf("weft_keys_kms_request_seconds_sum{op=%q} %s\n", op, sum)
		out += fmt.Sprintf("weft_keys_kms_request_seconds_count{op=%q} %d\n", op, count)
	}
	out += "# HELP weft_keys_kms_requests_total " +
		"Calls to the KMS, each attempt for itself. Every outcome is present, also at 0.\n" +
		"# TYPE weft_keys_kms_requests_total counter\n"
	for _, op := range []string{"identity", "unwrap", "wrap"} {
		for _, outcome := range slices.Sorted(slices.Values(kek.Outcomes())) {
			count := map[string]int{"unwrap ok": 2, "unwrap denied": 1}[op+" "+outcome]
			out += fmt.Sprintf("weft_keys_kms_requests_total{op=%q,outcome=%q} %d\n", op, outcome,
				count)
		}
	}
	return out
}

func TestKMSMetrics(t *testing.T) {
	for failing, up := range map[string]string{"": "1", "denied": "0"} {
		extended := map[string]string{"0": "1", "1": "0"}[up]
		want := `
# HELP weft_keys_epoch_extended 1 while keys are in use beyond their epoch's hard TTL, as keys.extendTTL allows.
# TYPE weft_keys_epoch_extended gauge
weft_keys_epoch_extended ` + extended + `
# HELP weft_keys_epoch_ttl_ratio How much of the hard TTL of the epoch in use is over, 0 to 1. At 1 packets are dropped, or weft_keys_epoch_extended is 1.
# TYPE weft_keys_epoch_ttl_ratio gauge
weft_keys_epoch_ttl_ratio 0.5
` + kmsText() + `# HELP weft_keys_kms_up 0 when the last call to the KMS failed.
# TYPE weft_keys_kms_up gauge
weft_keys_kms_up ` + up + `
# HELP weft_keys_rewraps_total Epochs' keys that this node wrapped again for a new version of the KEK.
# TYPE weft_keys_rewraps_total counter
weft_keys_rewraps_total 1
# HELP weft_keys_unwrap_errors_total Attempts at an epoch's key that failed, each with all its calls to the KMS. Every kind is present, also at 0.
# TYPE weft_keys_unwrap_errors_total counter
weft_keys_unwrap_errors_total{kind="denied"} 2
`
		err := testutil.CollectAndCompare(NewCollector(asked{failing}, nil),
			strings.NewReader(want),
			"weft_keys_epoch_extended", "weft_keys_epoch_ttl_ratio", "weft_keys_rewraps_total",
			"weft_keys_unwrap_errors_total", "weft_keys_kms_requests_total",
			"weft_keys_kms_request_seconds", "weft_keys_kms_up")
		if err != nil {
			t.Error(err)
		}
	}
}
