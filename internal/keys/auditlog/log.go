// Package auditlog keeps the audit log of keys on disk: every record is whole, in a file that
// only grows and begins anew when it is full.
package auditlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/logfile"
)

const (
	// queueMax is how many records are kept in memory while the file cannot be written.
	queueMax = 16384
	// retryPause is how long to wait after a failure.
	retryPause = time.Second
)

// Options say where the audit log is.
type Options struct {
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

// Log appends records to a file, on a goroutine of its own: its callers are never held up by a
// disk. What was written is on disk (fsync) before the next records are taken. A file that cannot
// be written is tried again.
type Log struct {
	opt  Options
	file logfile.File
	wake chan struct{}
	done chan struct{}

	mu     sync.Mutex
	queue  []audit.Record
	lost   uint64
	closed bool
	err    error
}

// Open begins an audit log. It does not fail: Err tells what is wrong with the file, now or later.
func Open(opt Options) *Log {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	a := &Log{
		opt: opt, file: logfile.File{Path: opt.Path, MaxSize: opt.MaxSize, Keep: opt.Keep,
			Sync: true},
		wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	go a.run()
	return a
}

// Add takes a record over. Of what asks the KMS only the KEK's own is kept, which knows more.
func (a *Log) Add(r audit.Record) {
	r, ok := r.Logged()
	if !ok {
		return
	}
	r.Node, r.Time = a.opt.Node, r.Time.UTC()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) >= queueMax || a.closed {
		a.lost++
		return
	}
	a.queue = append(a.queue, r)
	a.poke()
}

func (a *Log) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Err is why records cannot be written now, nil if they can.
func (a *Log) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Close writes what is left, if that is possible at once.
func (a *Log) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.poke()
	<-a.done
	return errors.Join(a.Err(), a.file.Close())
}

func (a *Log) run() {
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
func (a *Log) pause() {
	select {
	case <-time.After(retryPause):
	case <-a.wake:
		a.mu.Lock()
		closed := a.closed
		a.mu.Unlock()
		if !closed {
			time.Sleep(retryPause)
		}
	}
	a.poke()
}

// take copies the queue, with what was lost at its end.
func (a *Log) take() (batch []audit.Record, lost uint64, closed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	batch = append(batch, a.queue...)
	if a.lost > 0 {
		batch = append(batch, audit.Record{
			Time: time.Now().UTC(), Node: a.opt.Node, Op: audit.OpLost, Outcome: "failed",
			Detail: fmt.Sprintf("%d records found no room", a.lost),
		})
	}
	return batch, a.lost, a.closed
}

// wrote takes what is on disk out of the queue.
func (a *Log) wrote(batch []audit.Record, lost uint64, err error) {
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

// append puts records on disk. After an error nothing or a part of them is there, and they may be
// given again.
func (a *Log) append(batch []audit.Record) error {
	lines, err := encode(batch)
	if err == nil {
		err = a.file.Append(lines)
	}
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// encode puts records into lines.
func encode(batch []audit.Record) ([]byte, error) {
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
