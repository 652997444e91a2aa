package mesh

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/bench/report"
)

func TestLoads(t *testing.T) {
	var names []string
	for _, l := range Loads() {
		names = append(names, l.Name())
	}
	want := []string{
		"max-0k", "max-1k", "max-10k", "max-100k",
		"rps1000-0k", "rps1000-1k", "rps1000-10k", "rps1000-100k",
		"rps3200-0k", "rps3200-1k", "rps3200-10k", "rps3200-100k",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	const always = "--clients=16 --threads=1 --log-file=LOG --duration=1500ms "
	for _, c := range []struct {
		load Load
		want string
	}{
		{Load{KiB: 10}, "http://pod/10k"},
		{Load{KiB: 0, Rate: 1000}, "--rps=62.5 --max-concurrent-streams=32 http://pod/0k"},
		{Load{KiB: 1, Rate: 3200}, "--rps=200 --max-concurrent-streams=32 http://pod/1k"},
	} {
		got := strings.Join(c.load.args(1500*time.Millisecond, "LOG", "http://pod"), " ")
		if got != always+c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.load.Name(), got, always+c.want)
		}
	}
}

// ended is the end of what h2load 1.52 says.
func ended(requests, data string) string {
	return "Stopped all clients for thread #0\n\nfinished in 1.55s, 3233.33 req/s, 31.67MB/s\n" +
		"requests: " + requests + "\nstatus codes: 4850 2xx, 0 3xx, 0 4xx, 0 5xx\n" +
		"traffic: 47.50MB (49811788) total, 58.70KB (60104) headers (space savings 92.11%), " +
		data +
		"\n                     min         max\ntime for request:       24us    157.18ms\n"
}

func TestParseSummary(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       summary
		err        string
	}{
		{
			"all answered", ended("4850 total, 4866 started, 4850 done, 4850 succeeded, 0 failed, "+
				"0 errored, 0 timeout", "47.36MB (49664000) data"),
			summary{4850, 0, 49664000}, "",
		},
		{
			"no body", ended("13807 total, 13823 started, 13807 done, 13807 succeeded, 0 failed, "+
				"0 errored, 0 timeout", "0B (0) data"),
			summary{13807, 0, 0}, "",
		},
		{
			"answered by a 503",
			ended("4463 total, 4975 started, 4463 done, 4383 succeeded, 80 failed, "+
				"0 errored, 0 timeout", "1.12KB (1150) data"),
			summary{4383, 80, 1150}, "",
		},
		{
			"refused", ended("1 total, 0 started, 0 done, 0 succeeded, 1 failed, "+
				"1 errored, 0 timeout", "0B (0) data"),
			summary{0, 1, 0}, "",
		},
		{"cut short", "starting benchmark...\n", summary{}, "no summary"},
		{
			"no traffic", ended("1 total, 1 succeeded, 0 failed, 0 errored", "much data"),
			summary{}, "no summary",
		},
		{
			"a number too large",
			ended("1 total, 99999999999999999999 succeeded, 0 failed, 0 errored", "0B (0) data"),
			summary{}, "out of range",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseSummary(c.text)
			if got != c.want && c.err == "" || !says(err, c.err) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// says tells whether an error holds a text; an empty one is for no error.
func says(err error, text string) bool {
	if text == "" || err == nil {
		return text == "" && err == nil
	}
	return strings.Contains(err.Error(), text)
}

func TestBodiesAreCounted(t *testing.T) {
	for _, c := range []struct {
		name string
		sum  summary
		kib  int
		err  string
	}{
		{"whole", summary{succeeded: 3, bodyBytes: 3 * 10240}, 10, ""},
		{"one more under way", summary{succeeded: 3, bodyBytes: 3*10240 + 512}, 10, ""},
		{
			"a byte short", summary{succeeded: 3, bodyBytes: 3*10240 - 1}, 10,
			"3 answers brought 30719 bytes, not 30720",
		},
		{"empty", summary{succeeded: 3}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.sum.check(Load{KiB: c.kib}); !says(err, c.err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// second is a window of one second, from 10 s after 1970.
var second = window{
	begin: time.UnixMicro(10e6), end: time.UnixMicro(11e6), cpu: 600 * time.Microsecond,
}

func TestParseLog(t *testing.T) {
	for _, c := range []struct {
		name, log string
		want      []uint32
		err       string
	}{
		{"empty", "", nil, ""},
		{"within", "10000001\t200\t5\n10500000\t204\t7\n", []uint32{5, 7}, ""},
		{"begun before, ended within", "9999000\t200\t1001\n", []uint32{1001}, ""},
		{"ended when it begins", "9999000\t200\t1000\n", nil, ""},
		{"ended with it", "10999000\t200\t1000\n", []uint32{1000}, ""},
		{"ended after it", "10999000\t200\t1001\n", nil, ""},
		{"not found", "10000001\t404\t5\n", nil, ""},
		{"failed", "10000001\t-1\t5\n", nil, ""},
		{"a later version's column", "10000001\t200\t5\tmore\n", []uint32{5}, ""},
		{"longer than an hour", "1\t200\t10000000\n", []uint32{10000000}, ""},
		{"two columns", "10000001\t200\n", nil, "line"},
		{"no number", "10000001\tOK\t5\n", nil, "OK"},
		{"cut in a number", "10000001\t200\t\n", nil, "parse h2load's log"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := second.parseLog(strings.NewReader(c.log))
			if !slices.Equal(got, c.want) || !says(err, c.err) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func FuzzParseLog(f *testing.F) {
	for _, log := range []string{
		"10000001\t200\t5\n", "10000001\t-1\t5\n", "\t\t",
		"9223372036854775807\t200\t9223372036854775807",
	} {
		f.Add(log)
	}
	f.Fuzz(func(t *testing.T, log string) {
		times, err := second.parseLog(strings.NewReader(log))
		if err == nil && len(times) > strings.Count(log, "\n")+1 {
			t.Errorf("%d requests in %q", len(times), log)
		}
	})
}

func TestSample(t *testing.T) {
	var times []uint32
	for i := range 200 {
		times = append(times, uint32(200-i))
	}
	got, err := second.sample(Load{KiB: 1}, times, summary{succeeded: 300, failed: 2})
	if err != nil {
		t.Fatal(err)
	}
	want := report.Sample{
		"requests_s": 200, "p50_us": 100, "p99_us": 198, "cpu_us_per_request": 3, "failures": 2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for name := range got {
		if report.FindMetric(name).Unit == "" {
			t.Errorf("metric %s has no unit", name)
		}
	}
	_, err = second.sample(Load{KiB: 1}, nil, summary{failed: 7})
	if !says(err, "max-1k: no request was answered, 7 failed") {
		t.Errorf("a run without answers: %v", err)
	}
}

func TestToolsAreNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := FindTools("")
	if !says(err, "h2load is missing: install Debian's package nghttp2-client") {
		t.Errorf("without h2load: %v", err)
	}
	if _, err := FindTools(t.TempDir() + "/envoy"); !says(err, "envoy: ") {
		t.Errorf("with an Envoy that is not there: %v", err)
	}
}
