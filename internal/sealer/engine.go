package sealer

import (
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sealer/control"
)

// output is where frames go: the tap. Each call is one frame.
type output interface {
	writev(iovs []unix.Iovec) syscall.Errno
}

// engine turns each frame into others. It allocates nothing per frame, and is for one goroutine;
// keys, port and counters are shared with the control socket.
type engine struct {
	out     output
	keys    *keyring
	port    atomic.Uint32
	stats   counters
	current *snapshot // during a frame

	nonce [12]byte
	aad   [12]byte
	cut   cutter
	// What may become more with the next frame, until flush.
	batch   batch
	glue    glue
	waiting int // frames since one of them began

	sealed  []byte                    // the batch
	iovs    [2 + maxPieces]unix.Iovec // from the third on, the glue's
	refused refusals
	head    [headLen]byte // of what goes out
	note    [headLen + ip4Len]byte
}

func newEngine(out output, keys *keyring) (*engine, error) {
	sealed, err := pages(headLen + maxIP + slack)
	return &engine{out: out, keys: keys, sealed: sealed}, err
}

// slack is what a buffer needs behind its frame: a trailer and what is read beyond it.
const slack = 64

// counters are control.Stats, of one writer.
type counters struct {
	seal, open counts
	ignored    atomic.Uint64
}

type counts struct {
	framesIn, framesOut, packets, bytes, failures atomic.Uint64
	refused                                       [len(control.Direction{}.Refused)]atomic.Uint64
}

func (c *counts) read() control.Direction {
	d := control.Direction{
		FramesIn: c.framesIn.Load(), FramesOut: c.framesOut.Load(), Packets: c.packets.Load(),
		Bytes: c.bytes.Load(), WriteFailures: c.failures.Load(),
	}
	for i := range d.Refused {
		d.Refused[i] = c.refused[i].Load()
	}
	return d
}

func (c *counters) read() control.Stats {
	return control.Stats{Seal: c.seal.read(), Open: c.open.read(), Ignored: c.ignored.Load()}
}

// maxWaiting bounds how many frames pass before what waits to become more is sent, if frames keep
// coming that do not join it: of the other direction, say.
const maxWaiting = maxPieces

// frame does all that there is to do with the frame of n bytes that buf begins with, which it
// changes, but for what waits in batch and glue for the next frame: that flush sends. buf has slack
// behind it. kept says that what waits is in it, and that it is to stay as it is until flush.
func (e *engine) frame(buf []byte, n int) (kept bool) {
	if n < headLen+ip4Len {
		e.stats.ignored.Add(1)
		return false
	}
	kept = e.handle(decodeMeta(buf[vnetLen:]), buf, n)
	if e.waits() {
		e.waiting++
	} else {
		e.waiting = 0
	}
	if e.waiting >= maxWaiting {
		e.flush()
	}
	return kept && e.glue.n > 0
}

// handle is frame, with the keys of the moment.
func (e *engine) handle(m meta, buf []byte, n int) (kept bool) {
	e.current = e.keys.enter()
	defer e.keys.leave() // also in a panic: who changes keys waits for it
	switch m.kind {
	case kindSeal4, kindSeal6:
		e.stats.seal.framesIn.Add(1)
		e.seal(m, decodeVnet(buf), buf[headLen:], n-headLen)
	case kindOpen:
		e.stats.open.framesIn.Add(1)
		e.open(m, decodeVnet(buf), buf[headLen:n])
		kept = true
	default:
		e.stats.ignored.Add(1)
	}
	e.current = nil
	return kept
}

// waits says whether there is something for flush.
func (e *engine) waits() bool { return e.batch.count > 0 || e.glue.n > 0 }

// flush sends what waits for the next frame: for when there is none.
func (e *engine) flush() {
	e.flushSealed()
	e.flushOpened()
	e.waiting = 0
}

// write sends a frame of its iovecs.
func (e *engine) write(c *counts, iovs []unix.Iovec) {
	if e.out.writev(iovs) != 0 {
		c.failures.Add(1)
		return
	}
	c.framesOut.Add(1)
}

// refusals gathers refusals of one kind, so that a frame of forged pieces is answered by one.
type refusals struct {
	sa     uint32
	reason control.Reason
	count  int
	seq    uint64 // the last number that was to be sealed with, 0 of what was to be opened
}

// refuse notes that count packets of the SA were refused.
func (e *engine) refuse(c *counts, id uint32, reason control.Reason, count int, seq uint64) {
	r := &e.refused
	if r.count > 0 && (r.sa != id || r.reason != reason) {
		e.tellRefused(c)
	}
	r.sa, r.reason, r.seq = id, reason, seq
	r.count += count
	c.refused[reason].Add(uint64(count))
}

// tellRefused writes what was gathered.
func (e *engine) tellRefused(c *counts) {
	r := &e.refused
	for r.count > 0 {
		n := min(r.count, 255)
		r.count -= n
		clear(e.note[:])
		m := meta{kind: kindRefused, count: uint8(n), sa: r.sa, identity: uint32(r.reason),
			seq: r.seq}
		m.put(e.note[vnetLen:])
		be.PutUint16(e.note[vnetLen+metaLen:], etherIP4)
		e.iovs[0] = iovec(e.note[:])
		if e.out.writev(e.iovs[:1]) != 0 {
			c.failures.Add(1)
		}
	}
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

// bind sets nonce and additional data of a packet (RFC 4106 sections 4 and 5). The first 8 bytes
// of the packet are SPI and lower half of the number, the next 8 the IV.
func (e *engine) bind(s *sa, esp []byte, seq uint64) {
	copy(e.nonce[:], s.secret.key.Salt[:])
	copy(e.nonce[4:], esp[8:16])
	copy(e.aad[:4], esp)
	be.PutUint64(e.aad[4:], seq)
}
