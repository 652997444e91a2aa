package sealer

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// nowhere is an output that only counts.
type nowhere struct{ frames int }

func (n *nowhere) writev([]unix.Iovec) syscall.Errno {
	n.frames++
	return 0
}

// noCipher is what is left without one: a copy, as every cipher makes.
type noCipher struct{}

func (noCipher) NonceSize() int { return 12 }
func (noCipher) Overhead() int  { return icvLen }

func (noCipher) Seal(dst, _, plaintext, _ []byte) []byte {
	n := len(dst)
	dst = dst[:n+len(plaintext)+icvLen]
	copy(dst[n:], plaintext)
	return dst
}

func (noCipher) Open(dst, _, ciphertext, _ []byte) ([]byte, error) {
	return dst[:len(dst)+len(ciphertext)-icvLen], nil
}

// repeat gives the engine one frame again and again, with fresh numbers. withCipher false:
// noCipher.
type repeat struct {
	e     *engine
	frame []byte
	buf   []byte
	seq   uint64
	opens bool
}

func (r *repeat) once() {
	copy(r.buf, r.frame)
	m := decodeMeta(r.buf[vnetLen:])
	if r.opens {
		// The same pieces again: their numbers are to be new.
		r.e.keys.current.Load().in[m.sa].window = window{}
	} else {
		r.seq += uint64(m.count)
		m.seq = r.seq
		m.put(r.buf[vnetLen:])
	}
	r.e.frame(r.buf, len(r.frame))
	r.e.flush()
}

func repeats(t testing.TB, row cutRow, opens, cipher bool) *repeat {
	t.Helper()
	e, out := testEngine(t, testSA)
	if !cipher {
		for _, half := range []map[uint32]*sa{e.keys.current.Load().in, e.keys.current.Load().out} {
			half[testSA].aead = noCipher{}
		}
	}
	f := row.frame(1)
	if opens {
		_, m, _ := split(f)
		v, _, ip := split(give(e, out, f)[0])
		f = frame(v, meta{kind: kindOpen, count: 1, sa: m.sa}, ip)
	}
	e.out = &nowhere{}
	return &repeat{e: e, frame: f, buf: make([]byte, len(f)+slack), seq: 1000, opens: opens}
}

func speedRows() []cutRow {
	h := tcp{seq: 1, ack: 2, flags: tcpACK, window: 3, options: timestamps(1, 2)}
	return []cutRow{
		{name: "TCP 64 kB", size: 1386, bytes: 44 * 1386, tcp: h},
		{name: "TCP 64 kB, IPv6", ip6: true, size: 1366, bytes: 44 * 1366, tcp: h},
		{name: "UDP 64 kB", udp: true, size: 1400, bytes: 44 * 1400},
		{name: "one packet", size: 1386, bytes: 1386, tcp: h},
	}
}

// TestAllocations: the worker makes no garbage, so nothing stops it for long.
func TestAllocations(t *testing.T) {
	for _, row := range speedRows() {
		for _, opens := range []bool{false, true} {
			r := repeats(t, row, opens, true)
			if n := testing.AllocsPerRun(100, r.once); n != 0 {
				t.Errorf("%s, opens %v: %v allocations a frame", row.name, opens, n)
			}
			if s := r.e.stats.read(); s.Seal.Packets+s.Open.Packets < 100 ||
				s.Seal.Refused != s.Open.Refused {
				t.Errorf("%s, opens %v: %+v", row.name, opens, s)
			}
		}
	}
	e, _ := testEngine(t, testSA)
	e.out = &nowhere{}
	f, seal, open := newFeeder(e), frames(stream(1, 100, nil))[0], opens(t, stream(1, 100, nil))[0]
	m := decodeMeta(seal[vnetLen:])
	if n := testing.AllocsPerRun(500, func() {
		m.seq++
		m.put(seal[vnetLen:])
		f.frame(seal)
		e.keys.current.Load().in[testSA].window = window{}
		f.frame(open)
	}); n != 0 {
		t.Errorf("one by one: %v allocations a frame", n)
	}
	if s := e.stats.read(); s.Seal.FramesOut > s.Seal.Packets/10 || s.Seal.Packets != 501 ||
		s.Open.Packets != 501 {
		t.Errorf("one by one: %+v", s)
	}
	refused := &repeat{e: e, frame: bulk(40, 1), seq: 1}
	m = decodeMeta(refused.frame[vnetLen:])
	m.sa++
	m.put(refused.frame[vnetLen:])
	refused.buf = make([]byte, len(refused.frame)+slack)
	if n := testing.AllocsPerRun(100, refused.once); n != 0 {
		t.Errorf("refused: %v allocations a frame", n)
	}
}

func benchmark(b *testing.B, opens bool) {
	for _, row := range speedRows() {
		for _, cipher := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s, cipher %v", row.name, cipher), func(b *testing.B) {
				r := repeats(b, row, opens, cipher)
				b.SetBytes(int64(row.bytes))
				b.ReportAllocs()
				for b.Loop() {
					r.once()
				}
			})
		}
	}
}

func BenchmarkSeal(b *testing.B) { benchmark(b, false) }
func BenchmarkOpen(b *testing.B) { benchmark(b, true) }

// BenchmarkTap is a process on a tap, with the system calls and wake-ups that are part of it.
func BenchmarkTap(b *testing.B) {
	for _, row := range speedRows() {
		b.Run("seal "+row.name, func(b *testing.B) {
			s := start(b)
			s.ready(b, testSA)
			f := row.frame(1)
			m := decodeMeta(f[vnetLen:])
			if m.count == 1 { // which Linux does not take for one that stands for many
				v := decodeVnet(f)
				v.gso, v.size = gsoNone, 0
				v.put(f)
			}
			b.SetBytes(int64(row.bytes))
			before := cpu(b, s.PID())
			for b.Loop() {
				m.seq += uint64(m.count)
				m.put(f[vnetLen:])
				s.hooks.send(f)
				if s.hooks.receive() == nil {
					b.Fatal("nothing comes back")
				}
			}
			b.ReportMetric(float64(cpu(b, s.PID())-before)*1e7/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkSingles is what a worker does with datagrams that wait in the tap, one by one or merged,
// per datagram: reads and writes are part of it, who puts them there and who takes them is not.
func BenchmarkSingles(b *testing.B) {
	const queue = 256
	for _, size := range []int{64, 512, 1400} {
		for _, way := range []string{"seal", "open", "open merged"} {
			b.Run(fmt.Sprintf("%s %d", way, size), func(b *testing.B) {
				w, h := testWorker(b)
				lockThread()
				arena := make([]byte, arenaLen)
				list := frames(stream(queue, size, nil))
				switch way {
				case "open":
					list = opens(b, stream(queue, size, nil))
				case "open merged":
					list = merged(opens(b, stream(queue, size, nil)))
				}
				for n := 0; b.Loop(); n++ {
					b.StopTimer()
					for half := range 2 {
						w.engine.keys.current.Load().of(half == 0)[testSA].window = window{}
					}
					for _, f := range list {
						h.send(f)
					}
					b.StartTimer()
					drain(b, w, arena)
					b.StopTimer()
					h.discard()
					b.StartTimer()
				}
				if s := w.engine.stats.read(); s.Seal.Packets+s.Open.Packets != uint64(b.N*queue) {
					b.Errorf("%d rounds: %+v", b.N, s)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*queue), "ns/packet")
			})
		}
	}
}

// merged are the pieces of outer packets, as the kernel's GRO leaves them.
func merged(opens [][]byte) (list [][]byte) {
	for some := range slices.Chunk(opens, 44) {
		var esp [][]byte
		for _, f := range some {
			esp = append(esp, f[headLen+ip4Len+udpLen:])
		}
		v, m, ip := split(wrap(false, 0, 99, esp...))
		v.unfinished, v.start, v.offset, v.hdr = true, etherLen+ip4Len, 6, headLen+ip4Len+udpLen-vnetLen
		list = append(list, frame(v, m, ip))
	}
	return list
}

// cpu is what a process has used, in hundredths of seconds.
func cpu(t testing.TB, pid int) (ticks int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
	for _, field := range fields[12:14] {
		n, _ := strconv.Atoi(field)
		ticks += n
	}
	return ticks
}
