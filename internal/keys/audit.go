package keys

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/logfile"
)

// What an AuditRecord tells of, beside the names of other events.
const (
	AuditCreate  = "create"  // an epoch was published
	AuditWrap    = "wrap"    // the KMS was asked to wrap an epoch's key
	AuditUnwrap  = "unwrap"  // the KMS was asked to unwrap an epoch's key
	AuditProbe   = "probe"   // the KMS was asked to wrap a throwaway key, to learn the KEK's version
	AuditSwitch  = "switch"  // packets to a peer are sealed in this epoch from now on
	AuditDestroy = "destroy" // keys, or an epoch, are gone
	// AuditLost says how many records there was no room for while the file could not be written.
	AuditLost = "records_lost"
)

// AuditRecord is one line of the audit log. It never holds a key.
type AuditRecord struct {
	Time  time.Time `json:"time"`
	Node  string    `json:"node"`
	Op    string    `json:"op"`
	Epoch uint64    `json:"epoch,omitempty"`
	Peer  string    `json:"peer,omitempty"`
	// KEK and KEKVersion are what wrapped the epoch's key.
	KEK        string `json:"kek,omitempty"`
	KEKVersion string `json:"kekVersion,omitempty"`
	// Outcome is "ok" or the kind of failure.
	Outcome string `json:"outcome"`
	// Attempts and Latency are of the KMS, with all pauses between attempts.
	Attempts int           `json:"attempts,omitempty"`
	Latency  time.Duration `json:"latencyNanos,omitempty"`
	Detail   string        `json:"detail,omitempty"`
}

const (
	// auditQueue is how many records are kept in memory while the file cannot be written.
	auditQueue = 16384
	// auditRetry is how long to wait after a failure.
	auditRetry = time.Second
)

// AuditOptions say where the audit log is.
type AuditOptions struct {
	// Path is the file, which is made when it is not there.
	Path string
	Node string
	// MaxSize is how many bytes a file may have before the next is begun.
	MaxSize int64
	// Keep is how many full files are kept beside the one in use.
	Keep int
	// Log is optional.
	Log *slog.Logger
}

// AuditLog appends records to a file, on a goroutine of its own: its callers are never held up by a disk. What was
// written is on disk (fsync) before the next records are taken. A file that cannot be written is tried again.
type AuditLog struct {
	opt  AuditOptions
	file logfile.File
	wake chan struct{}
	done chan struct{}

	mu     sync.Mutex
	queue  []AuditRecord
	lost   uint64
	closed bool
	err    error
}

// OpenAudit begins an audit log. It does not fail: Err tells what is wrong with the file, now or later.
func OpenAudit(opt AuditOptions) *AuditLog {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	a := &AuditLog{
		opt: opt, file: logfile.File{Path: opt.Path, MaxSize: opt.MaxSize, Keep: opt.Keep, Sync: true},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go a.run()
	return a
}

// Event takes over what a Manager tells. What asks the KMS comes through KEK, which knows more of it.
func (a *AuditLog) Event(e Event) {
	r := AuditRecord{
		Time: e.Time, Op: e.Event, Epoch: e.Epoch, Peer: e.Peer, KEK: e.KEK, KEKVersion: e.KEKVersion, Outcome: e.Outcome,
		Latency: e.Took, Detail: e.Detail,
	}
	switch e.Event {
	case EventWrapped, EventUnwrapped:
		return
	case EventCreated:
		r.Op = AuditCreate
	case EventDestroyed, EventForgotten, EventDeleted:
		r.Op = AuditDestroy
	case EventExchanged:
		if e.Switched {
			r.Op = AuditSwitch
		}
	}
	if r.Outcome == "" {
		r.Outcome = "ok"
	}
	a.add(r)
}

// KEK takes over one operation of the key-encryption key.
func (a *AuditLog) KEK(rec kek.AuditRecord) {
	r := AuditRecord{
		Time: rec.Time, Op: rec.Op, Epoch: rec.Epoch, KEK: rec.KEK, KEKVersion: rec.Version, Outcome: rec.Outcome,
		Attempts: rec.Attempts, Latency: rec.Elapsed, Detail: rec.Error,
	}
	if rec.Cluster == kek.ProbeCluster {
		r.Op = AuditProbe
	}
	a.add(r)
}

func (a *AuditLog) add(r AuditRecord) {
	r.Node, r.Time = a.opt.Node, r.Time.UTC()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) >= auditQueue || a.closed {
		a.lost++
		return
	}
	a.queue = append(a.queue, r)
	a.poke()
}

func (a *AuditLog) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Err is why records cannot be written now, nil if they can.
func (a *AuditLog) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Close writes what is left, if that is possible at once.
func (a *AuditLog) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.poke()
	<-a.done
	return errors.Join(a.Err(), a.file.Close())
}

func (a *AuditLog) run() {
	defer close(a.done)
	for range a.wake {
		for {
			batch, lost, closed := a.take()
			if len(batch) == 0 {
				if closed {
					return
				}
				break
			}
			err := a.append(batch)
			a.wrote(batch, lost, err)
			if err != nil && closed {
				return
			}
			if err != nil {
				a.pause()
			}
		}
	}
}

// pause waits before the next attempt, less when the log is being closed.
func (a *AuditLog) pause() {
	select {
	case <-time.After(auditRetry):
	case <-a.wake:
		a.mu.Lock()
		closed := a.closed
		a.mu.Unlock()
		if !closed {
			time.Sleep(auditRetry)
		}
	}
	a.poke()
}

// take copies the queue, with what was lost at its end.
func (a *AuditLog) take() (batch []AuditRecord, lost uint64, closed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	batch = append(batch, a.queue...)
	if a.lost > 0 {
		batch = append(batch, AuditRecord{
			Time: time.Now().UTC(), Node: a.opt.Node, Op: AuditLost, Outcome: "failed", Detail: fmt.Sprintf("%d records found no room", a.lost),
		})
	}
	return batch, a.lost, a.closed
}

// wrote takes what is on disk out of the queue.
func (a *AuditLog) wrote(batch []AuditRecord, lost uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.err
	a.err = err
	switch {
	case err != nil && was == nil:
		a.opt.Log.Error("keys: cannot write the audit log", "file", a.opt.Path, "err", err)
	case err == nil && was != nil:
		a.opt.Log.Info("keys: the audit log is written again", "file", a.opt.Path)
	}
	if err != nil {
		return
	}
	if lost > 0 {
		batch = batch[:len(batch)-1]
		a.lost -= lost
	}
	a.queue = append(a.queue[:0], a.queue[len(batch):]...)
}

// append puts records on disk. After an error nothing or a part of them is there, and they may be given again.
func (a *AuditLog) append(batch []AuditRecord) error {
	lines, err := encodeAudit(batch)
	if err == nil {
		err = a.file.Append(lines)
	}
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// encode puts records into lines.
func encodeAudit(batch []AuditRecord) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	for i := range batch {
		if err := enc.Encode(&batch[i]); err != nil {
			return nil, fmt.Errorf("encode audit record: %w", err)
		}
	}
	return out.Bytes(), nil
}
