package keys

import (
	"maps"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/keys/kek"
)

// KMSOps are the operations that a KMSMeter counts.
var KMSOps = []string{"wrap", "unwrap", "identity"}

// KMSBuckets are the upper bounds, in seconds, of KMSRequests.Buckets.
var KMSBuckets = []float64{0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

// KMSRequests counts the calls of one operation.
type KMSRequests struct {
	Op string `json:"op"`
	// Outcomes counts by outcome; kek.Outcomes are all that there are.
	Outcomes map[string]uint64 `json:"outcomes"`
	// Buckets counts calls that took at most so many seconds: Buckets[i] those up to KMSBuckets[i].
	Buckets []uint64 `json:"buckets"`
	Seconds float64  `json:"seconds"`
}

// KMSStatus is how the KMS has answered lately.
type KMSStatus struct {
	// Failing names the kind of failure of the last call, "" if it was good or none was tried.
	Failing string `json:"failing,omitempty"`
	// Since is when it first failed in a row.
	Since time.Time `json:"since,omitzero"`
	// LastOK is when a call was last good, and Took how long it took.
	LastOK time.Time     `json:"lastOK,omitzero"`
	Took   time.Duration `json:"tookNanos,omitempty"`
	// LastError is the last operation that failed after all its attempts, also when it is over; LastErrorKind names
	// the last failure of a call.
	LastError     string        `json:"lastError,omitempty"`
	LastErrorKind string        `json:"lastErrorKind,omitempty"`
	LastErrorAt   time.Time     `json:"lastErrorAt,omitzero"`
	Requests      []KMSRequests `json:"requests,omitempty"`
}

// KMSMeter counts what a KEK tells of its calls: give its methods to kek.Options.
type KMSMeter struct {
	mu       sync.Mutex
	status   KMSStatus
	requests map[string]*KMSRequests
}

// NewKMSMeter makes a meter on which every operation and outcome is there, at 0.
func NewKMSMeter() *KMSMeter {
	m := &KMSMeter{requests: map[string]*KMSRequests{}}
	for _, op := range KMSOps {
		r := &KMSRequests{Op: op, Outcomes: map[string]uint64{}, Buckets: make([]uint64, len(KMSBuckets))}
		for _, outcome := range kek.Outcomes() {
			r.Outcomes[outcome] = 0
		}
		m.requests[op] = r
	}
	return m
}

// Observe takes one call over.
func (m *KMSMeter) Observe(a kek.Attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.requests[a.Op]
	if r == nil {
		return
	}
	r.Outcomes[a.Outcome]++
	if a.Op != "identity" {
		m.status.judge(a.Outcome, time.Now().UTC(), a.Elapsed)
	}
	seconds := a.Elapsed.Seconds()
	r.Seconds += seconds
	for i, bound := range KMSBuckets {
		if seconds <= bound {
			r.Buckets[i]++
		}
	}
}

// Audit takes one whole operation over.
func (m *KMSMeter) Audit(r kek.AuditRecord) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Attempts == 0 { // refused before the KMS was asked
		m.status.judge(r.Outcome, r.Time, r.Elapsed)
	}
	if r.Error != "" && r.Outcome != "canceled" {
		m.status.LastError = r.Error
	}
}

// judge takes an outcome over.
func (s *KMSStatus) judge(outcome string, at time.Time, took time.Duration) {
	switch outcome {
	case "ok":
		s.Failing, s.Since, s.LastOK, s.Took = "", time.Time{}, at, took
	case "canceled":
	default:
		if s.Failing == "" {
			s.Since = at
		}
		if s.LastErrorKind != outcome {
			s.LastError = ""
		}
		s.Failing, s.LastErrorKind, s.LastErrorAt = outcome, outcome, at
	}
}

// Status is how everything is now.
func (m *KMSMeter) Status() KMSStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.status
	for _, op := range KMSOps {
		r := *m.requests[op]
		r.Outcomes, r.Buckets = maps.Clone(r.Outcomes), slices.Clone(r.Buckets)
		s.Requests = append(s.Requests, r)
	}
	return s
}
