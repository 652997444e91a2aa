package bench

import (
	"testing"
	"time"

	"weft.dev/weft/internal/bench/report"
)

func TestRecordSubtractsGenerator(t *testing.T) {
	p := &plan{rows: report.NewCollector([]string{"pps64"}, []string{"gen", "xdp"})}
	p.record(test{name: "pps64"}, map[string]report.Sample{
		"gen": {"ns_per_packet": 200}, "xdp": {"ns_per_packet": 450},
	})
	r := report.Report{Rows: p.rows.Rows()}
	if row, ok := r.Row("pps64", "xdp", "net_ns_per_packet"); !ok || row.Median != 250 {
		t.Errorf("net cost is %v (there: %t), want 250", row.Median, ok)
	}
	if _, ok := r.Row("pps64", "gen", "net_ns_per_packet"); ok {
		t.Error("the generator has a net cost of its own")
	}
}

func TestSpanOf(t *testing.T) {
	at := func(ms int, counted uint64) look {
		return look{at: time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond), counted: counted,
			cpu: time.Duration(ms) * time.Millisecond}
	}
	cases := []struct {
		name  string
		looks []look
		want  genWindow
	}{
		{"nothing read", nil, genWindow{}},
		{"nothing moved", []look{at(0, 5), at(10, 5), at(20, 5)}, genWindow{}},
		{"shorter than its edges", []look{at(0, 0), at(10, 10), at(20, 20)}, genWindow{}},
		{
			"set-up, run, end",
			[]look{at(0, 0), at(10, 0), at(20, 100), at(40, 300), at(60, 500), at(80, 700),
				at(100, 900), at(120, 900)},
			genWindow{counted: 400, wall: 40 * time.Millisecond, cpu: 40 * time.Millisecond},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := spanOf(c.looks); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
