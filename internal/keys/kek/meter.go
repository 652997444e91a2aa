package kek

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"weft.dev/weft/internal/keys/audit"
)

// meteredOps are the operations that a Meter counts.
var meteredOps = []string{audit.OpWrap, audit.OpUnwrap, "identity"}

// Requests counts the calls of one operation.
type Requests struct {
	Op string `json:"op"`
	// Outcomes counts by outcome; Outcomes() are all that there are.
	Outcomes map[string]uint64 `json:"outcomes"`
	// Buckets counts calls that took at most so many seconds, as the histogram's bounds say.
	Buckets []uint64 `json:"buckets"`
	Seconds float64  `json:"seconds"`
}

// Health is how the KMS has answered lately.
type Health struct {
	// Failing names the kind of failure of the last call, "" if it was good or none was tried.
	Failing string `json:"failing,omitempty"`
	// Since is when it first failed in a row.
	Since time.Time `json:"since,omitzero"`
	// LastOK is when a call was last good, and Took how long it took.
	LastOK time.Time     `json:"lastOK,omitzero"`
	Took   time.Duration `json:"tookNanos,omitempty"`
	// LastError is the last operation that failed after all its attempts, also when it is over;
	// LastErrorKind names the last failure of a call.
	LastError     string     `json:"lastError,omitempty"`
	LastErrorKind string     `json:"lastErrorKind,omitempty"`
	LastErrorAt   time.Time  `json:"lastErrorAt,omitzero"`
	Requests      []Requests `json:"requests,omitempty"`
}

// Meter counts what a KEK tells of its calls: give its methods to Options. It is a
// prometheus.Collector, and safe for concurrent use.
type Meter struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec

	mu     sync.Mutex
	health Health
}

// NewMeter makes a meter on which every operation and outcome is there, at 0.
func NewMeter() *Meter {
	m := &Meter{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weft_keys_kms_requests_total",
			Help: "Calls to the KMS, each attempt for itself. Every outcome is present, also at 0.",
		}, []string{"op", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "weft_keys_kms_request_seconds",
			Help:    "How long calls to the KMS took.",
			Buckets: []float64{0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}, []string{"op"}),
	}
	for _, op := range meteredOps {
		m.seconds.WithLabelValues(op)
		for _, outcome := range Outcomes() {
			m.requests.WithLabelValues(op, outcome)
		}
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *Meter) Describe(ch chan<- *prometheus.Desc) {
	m.requests.Describe(ch)
	m.seconds.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *Meter) Collect(ch chan<- prometheus.Metric) {
	m.requests.Collect(ch)
	m.seconds.Collect(ch)
}

// Observe takes one call over.
func (m *Meter) Observe(a Attempt) {
	m.requests.WithLabelValues(a.Op, a.Outcome).Inc()
	m.seconds.WithLabelValues(a.Op).Observe(a.Elapsed.Seconds())
	if a.Op == "identity" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.health.judge(a.Outcome, time.Now().UTC(), a.Elapsed)
}

// Audit takes one whole operation over.
func (m *Meter) Audit(r audit.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Attempts == 0 { // refused before the KMS was asked
		m.health.judge(r.Outcome, r.Time, r.Latency)
	}
	if r.Detail != "" && r.Outcome != "canceled" {
		m.health.LastError = r.Detail
	}
}

// judge takes an outcome over.
func (h *Health) judge(outcome string, at time.Time, took time.Duration) {
	switch outcome {
	case "ok":
		h.Failing, h.Since, h.LastOK, h.Took = "", time.Time{}, at, took
	case "canceled":
	default:
		if h.Failing == "" {
			h.Since = at
		}
		if h.LastErrorKind != outcome {
			h.LastError = ""
		}
		h.Failing, h.LastErrorKind, h.LastErrorAt = outcome, outcome, at
	}
}

// Health is how everything is now.
func (m *Meter) Health() Health {
	m.mu.Lock()
	h := m.health
	m.mu.Unlock()
	for _, op := range meteredOps {
		h.Requests = append(h.Requests, m.read(op))
	}
	return h
}

// read takes the numbers of one operation out of the vectors that count them.
func (m *Meter) read(op string) Requests {
	r := Requests{Op: op, Outcomes: map[string]uint64{}}
	for _, outcome := range Outcomes() {
		r.Outcomes[outcome] = uint64(written(m.requests.WithLabelValues(op,
			outcome)).GetCounter().GetValue())
	}
	h := written(m.seconds.WithLabelValues(op).(prometheus.Metric)).GetHistogram()
	r.Seconds = h.GetSampleSum()
	for _, bucket := range h.GetBucket() {
		r.Buckets = append(r.Buckets, bucket.GetCumulativeCount())
	}
	return r
}

func written(metric prometheus.Metric) *dto.Metric {
	out := &dto.Metric{}
	_ = metric.Write(out) // fails for no counter and no histogram
	return out
}
