package mesh

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft.dev/weft/internal/bench/load"
	"weft.dev/weft/internal/bench/report"
)

// connections is how many HTTP/2 connections the client keeps open.
const connections = 16

// rateStreams is how many requests of one connection may be under way at a given rate: so many that
// those which are due do not wait for slow ones before them.
const rateStreams = 32

// Load is what the client asks for.
type Load struct {
	KiB  int // size of each response's body
	Rate int // requests per second over all connections; 0 is as many as go, one at a time on each
}

// Name is the load's name as a test: max-1k, rps1000-1k.
func (l Load) Name() string {
	if l.Rate == 0 {
		return "max-" + l.body()
	}
	return fmt.Sprintf("rps%d-%s", l.Rate, l.body())
}

// body names the file that the server serves.
func (l Load) body() string { return strconv.Itoa(l.KiB) + "k" }

// args are h2load's for a run of this length that logs every request to a file.
func (l Load) args(dur time.Duration, log, base string) []string {
	args := []string{
		"--clients=" + strconv.Itoa(connections), "--threads=1", "--log-file=" + log,
		"--duration=" + strconv.FormatInt(dur.Milliseconds(), 10) + "ms",
	}
	if l.Rate > 0 { // h2load's is per client
		perClient := strconv.FormatFloat(float64(l.Rate)/connections, 'f', -1, 64)
		args = append(args, "--rps="+perClient,
			"--max-concurrent-streams="+strconv.Itoa(rateStreams))
	}
	return append(args, base+"/"+l.body())
}

// started is what h2load says once its connections are open and its duration begins.
const started = "Main benchmark duration is started"

// summary is what h2load says at its end.
type summary struct{ succeeded, failed, bodyBytes int }

var (
	requestsLine = regexp.MustCompile(`(?m)^requests: .* (\d+) succeeded, (\d+) failed, `)
	trafficLine  = regexp.MustCompile(`(?m)^traffic: .* \((\d+)\) data$`)
)

// parseSummary reads the end of h2load's output.
func parseSummary(text string) (summary, error) {
	requests := requestsLine.FindStringSubmatch(text)
	traffic := trafficLine.FindStringSubmatch(text)
	if requests == nil || traffic == nil {
		return summary{}, fmt.Errorf("h2load has no summary that is known: %q",
			strings.TrimSpace(text))
	}
	var s summary
	for i, to := range []*int{&s.succeeded, &s.failed, &s.bodyBytes} {
		n, err := strconv.Atoi([]string{requests[1], requests[2], traffic[1]}[i])
		if err != nil {
			return summary{}, fmt.Errorf("parse h2load's summary: %w", err)
		}
		*to = n
	}
	return s, nil
}

// check says whether the bodies were as long as they should be.
func (s summary) check(l Load) error {
	if least := s.succeeded * (l.KiB << 10); s.bodyBytes < least {
		return fmt.Errorf("%s: %d answers brought %d bytes, not %d",
			l.Name(), s.succeeded, s.bodyBytes, least)
	}
	return nil
}

// window is the measured part of a run, and the CPU time that the machine spent in it.
type window struct {
	begin, end time.Time
	cpu        time.Duration
}

// parseLog reads h2load's log: how long each answered request took, in µs, of those whose answers
// ended within the window. Its columns are the start in µs since 1970, the status or -1, and the
// time taken in µs.
func (w window) parseLog(log io.Reader) ([]uint32, error) {
	var times []uint32
	begin, end := w.begin.UnixMicro(), w.end.UnixMicro()
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) < 3 {
			return nil, fmt.Errorf("parse h2load's log: line %q", lines.Text())
		}
		var n [3]int64
		for i := range n {
			var err error
			if n[i], err = strconv.ParseInt(fields[i], 10, 64); err != nil {
				return nil, fmt.Errorf("parse h2load's log: %w", err)
			}
		}
		done := n[0] + n[2]
		if n[1]/100 == 2 && n[2] >= 0 && done > begin && done <= end {
			times = append(times, uint32(min(n[2], 1<<32-1)))
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read h2load's log: %w", err)
	}
	return times, nil
}

// sample condenses a run. Failures are the whole run's, the warm-up's too.
func (w window) sample(l Load, times []uint32, s summary) (report.Sample, error) {
	if len(times) == 0 {
		return nil, fmt.Errorf("%s: no request was answered, %d failed", l.Name(), s.failed)
	}
	slices.Sort(times)
	return report.Sample{
		"requests_s":         float64(len(times)) / w.end.Sub(w.begin).Seconds(),
		"p50_us":             float64(load.Quantile(times, 0.50)),
		"p99_us":             float64(load.Quantile(times, 0.99)),
		"cpu_us_per_request": float64(w.cpu.Microseconds()) / float64(len(times)),
		"failures":           float64(s.failed),
	}, nil
}
