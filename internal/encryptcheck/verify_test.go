package encryptcheck

import (
	"strings"
	"testing"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name    string
		result  Result
		verdict string
		says    string
	}{
		{"all accounted for", Result{Sent: Sent{UDP: 5, TCP: 5}, SealedToPeer: 10}, Proven,
			"10 marked"},
		{"and more, of others", Result{Sent: Sent{UDP: 5}, SealedToPeer: 500}, Proven, ""},
		{"also where programs cannot be watched",
			Result{Sent: Sent{UDP: 5}, SealedToPeer: 5, Unseen: "no"}, Proven, ""},
		{"a marker", Result{Sent: Sent{UDP: 5}, SealedToPeer: 5, Capture: Report{Markers: 1}},
			Readable, "marker"},
		{"a plain packet", Result{Sent: Sent{UDP: 5}, SealedToPeer: 5, Capture: Report{Plain: 1}},
			Readable, "not sealed"},
		{"a marker in a lossy capture",
			Result{Sent: Sent{UDP: 5}, Lost: 1, Capture: Report{Markers: 1}}, Readable, "marker"},
		{"nothing sent", Result{Sent: Sent{Refused: 3, Error: "no buffer space"}}, Inconclusive,
			"no buffer space"},
		{"a lossy capture", Result{Sent: Sent{UDP: 5}, SealedToPeer: 5, Lost: 1}, Inconclusive,
			"could not keep"},
		{"nothing seen", Result{Sent: Sent{UDP: 5}}, Inconclusive, "no sealed packet"},
		{"too little seen", Result{Sent: Sent{UDP: 5}, SealedToPeer: 4}, Inconclusive, "only 4"},
		{"native XDP", Result{Sent: Sent{UDP: 5}, Unseen: "this kernel forbids it"}, Inconclusive,
			"this kernel forbids it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.result
			r.judge()
			if r.Verdict != c.verdict || !strings.Contains(r.Why, c.says) {
				t.Errorf("%s: %s", r.Verdict, r.Why)
			}
		})
	}
}
