package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fake is a Handler that remembers.
type fake struct {
	keys      []Key
	installed []Key
	removed   []Held
	config    Config
	stats     Stats
	tap       *os.File
	calls     []string
	refuse    error
	left      chan bool
}

func (f *fake) Hello() Hello { return Hello{Protocol: 7, PID: 8, Build: "v1 abc", Begun: true} }
func (f *fake) Configure(c Config) error {
	f.config = c
	return f.refuse
}
func (f *fake) Install(keys []Key) error {
	f.installed = append(f.installed, keys...)
	return f.refuse
}
func (f *fake) Remove(keys []Held) { f.removed = append(f.removed, keys...) }
func (f *fake) Each(do func(*Key) error) error {
	for i := range f.keys {
		if err := do(&f.keys[i]); err != nil {
			return err
		}
	}
	return nil
}
func (f *fake) Tap() int     { return int(f.tap.Fd()) }
func (f *fake) Begin() error { f.calls = append(f.calls, "begin"); return f.refuse }
func (f *fake) Stats() Stats { return f.stats }
func (f *fake) Quit()        { f.calls = append(f.calls, "quit") }
func (f *fake) Leave()       { f.left <- true }

// listen is a socket in the process's place, served by this one.
func listen(t *testing.T, serve func(*net.UnixConn)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sealer.sock")
	l, err := net.Listen("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn.(*net.UnixConn))
		}
	}()
	return path
}

// answer serves a handler.
func answer(h Handler) func(*net.UnixConn) {
	return func(conn *net.UnixConn) {
		defer conn.Close()
		a := &Answerer{Handler: h, Buffers: &Buffers{}, Send: func(message []byte, fd int) error {
			var oob []byte
			if fd != NoFD {
				oob = unix.UnixRights(fd)
			}
			_, _, err := conn.WriteMsgUnix(message, oob, nil)
			return err
		}}
		for {
			n, err := conn.Read(a.Buffers.Request[:])
			if err != nil || a.Answer(a.Buffers.Request[:n]) != nil {
				return
			}
		}
	}
}

func client(t *testing.T, path string) *Client {
	t.Helper()
	c, err := dial(t.Context(), path, uint32(os.Geteuid()), unix.EAGAIN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func manyKeys(n int) (keys []Key) {
	for i := range n {
		key := Key{Out: i%3 == 0, SA: uint32(i * 7), Fingerprint: uint64(i) << 40,
			Salt: [4]byte{byte(i), 2, 3, 4}}
		for j := range key.Key {
			key.Key[j] = byte(i + j)
		}
		keys = append(keys, key)
	}
	return keys
}

// TestOperations: what is asked for arrives, and its answer too, also in several messages.
func TestOperations(t *testing.T) {
	for _, n := range []int{0, 1, keysPerMessage, keysPerMessage + 1, 3 * heldPerMessage} {
		t.Run(fmt.Sprint(n, " keys"), func(t *testing.T) {
			tap, err := os.CreateTemp(t.TempDir(), "tap")
			if err != nil {
				t.Fatal(err)
			}
			tap.WriteString("the tap")
			h := &fake{keys: manyKeys(n), tap: tap, left: make(chan bool, 1)}
			for i, field := range h.stats.fields() {
				*field = uint64(i)<<33 + 1
			}
			c, ctx := client(t, listen(t, answer(h))), t.Context()
			var want []Held
			for i := range h.keys {
				want = append(want, h.keys[i].Held())
			}
			if err := errors.Join(c.Configure(ctx, Config{ESPPort: 4501}),
				c.Install(ctx, h.keys...), c.Remove(ctx, want...), c.Begin(ctx)); err != nil {
				t.Fatal(err)
			}
			if held, err := c.List(ctx); err != nil || !reflect.DeepEqual(held, want) {
				t.Errorf("%d listed, %v", len(held), err)
			}
			keys, file, err := c.Export(ctx)
			if err != nil || !reflect.DeepEqual(keys, h.keys) {
				t.Fatalf("%d exported, %v", len(keys), err)
			}
			text := make([]byte, 7)
			if _, err := file.ReadAt(text, 0); err != nil || string(text) != "the tap" {
				t.Errorf("not the tap: %q %v", text, err)
			}
			file.Close()
			if stats, err := c.Stats(ctx); err != nil || stats != h.stats {
				t.Errorf("%+v %v", stats, err)
			}
			if hello, err := c.Hello(ctx); err != nil || hello != h.Hello() {
				t.Errorf("%+v %v", hello, err)
			}
			if err := c.Quit(ctx); err != nil {
				t.Error(err)
			}
			<-h.left // only after the answer
			if h.config.ESPPort != 4501 || !reflect.DeepEqual(h.installed, h.keys) ||
				!reflect.DeepEqual(h.removed, want) {
				t.Errorf("port %d, %d installed, %d removed", h.config.ESPPort, len(h.installed),
					len(h.removed))
			}
			if strings.Join(h.calls, " ") != "begin quit" {
				t.Error(h.calls)
			}
			if !bytes.Equal(c.buf, make([]byte, len(c.buf))) {
				t.Error("something is left in the client's buffer")
			}
		})
	}
}

// TestRefused: a refusal is told, and the connection goes on.
func TestRefused(t *testing.T) {
	h := &fake{refuse: errors.New("not now")}
	c := client(t, listen(t, answer(h)))
	for range 2 {
		if err := c.Begin(t.Context()); !errors.Is(err, ErrRefused) || errors.Is(err, ErrClosed) ||
			!strings.Contains(err.Error(), "not now") {
			t.Errorf("begin: %v", err)
		}
	}
}

// TestNotSealer: keys go to nobody who only has the socket's place.
func TestNotSealer(t *testing.T) {
	path := listen(t, answer(&fake{}))
	if _, err := Dial(t.Context(), path); !errors.Is(err, ErrNotSealer) {
		t.Errorf("dial: %v", err)
	}
}

// TestBadAnswers: a connection that does not answer as it should is closed, for good.
func TestBadAnswers(t *testing.T) {
	for name, say := range map[string][]byte{
		"nothing":              nil,
		"short":                {1, 0, 0},
		"of another operation": {2, 0, 0, 0, 0, 0, 0, 0},
		"unknown status":       {1, 9, 0, 0, 0, 0, 0, 0},
		"of another length":    {1, 0, 0, 0, 0, 0, 0, 1, 1},
		"more, and nothing":    {1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0},
		"too long":             make([]byte, 2*maxMessage),
	} {
		t.Run(name, func(t *testing.T) {
			path := listen(t, func(conn *net.UnixConn) {
				conn.Read(make([]byte, maxMessage))
				if say != nil {
					conn.Write(say)
				}
				conn.Read(make([]byte, 1)) // until the client goes
				conn.Close()
			})
			c := client(t, path)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if hello, err := c.Hello(ctx); !errors.Is(err, ErrClosed) {
				t.Errorf("%+v %v", hello, err)
			}
			if _, err := c.Stats(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("the connection is used again: %v", err)
			}
		})
	}
}

// TestCancelled: who asks may stop waiting.
func TestCancelled(t *testing.T) {
	got := make(chan bool)
	c := client(t, listen(t, func(conn *net.UnixConn) {
		conn.Read(make([]byte, maxMessage))
		close(got)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-got
		cancel()
	}()
	if err := c.Begin(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("begin: %v", err)
	}
}

// TestKeysSayNothing: no way of printing shows a key.
func TestKeysSayNothing(t *testing.T) {
	key := manyKeys(1)[0]
	if text, err := json.Marshal(key); err != nil || string(text) != `"key"` {
		t.Errorf("JSON: %s %v", text, err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		for _, of := range []any{key, &key, []Key{key}, struct{ K Key }{key}} {
			if text := fmt.Sprintf(format, of); strings.ContainsAny(text, "0123456789") {
				t.Errorf("%s: %s", format, text)
			}
		}
	}
}

// TestNames: every reason and operation has a name of its own.
func TestNames(t *testing.T) {
	seen := map[string]bool{"unknown": true, "unknown operation": true, "": true}
	for r := ReasonNoKey; r < reasons; r++ {
		if seen[r.String()] {
			t.Errorf("reason %d is %q", r, r)
		}
		seen[r.String()] = true
	}
	for o := opHello; o < ops; o++ {
		if seen[o.String()] {
			t.Errorf("operation %d is %q", o, o)
		}
		seen[o.String()] = true
	}
	if Reason(0).String() != "unknown" || reasons.String() != "unknown" {
		t.Error("a reason that is none has a name")
	}
}

// TestCloseLeavesNothing: nothing waits for the end of a process that nobody has to do with any
// more.
func TestCloseLeavesNothing(t *testing.T) {
	path := listen(t, func(conn *net.UnixConn) {
		conn.Read(make([]byte, 1)) // until the client goes
		conn.Close()
	})
	pidfds := func() (n int) {
		all, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range all {
			if to, err := os.Readlink(fd); err == nil && strings.Contains(to, "pidfd") {
				n++
			}
		}
		return n
	}
	before := pidfds()
	c := client(t, path)
	if pidfds() != before+1 {
		t.Fatalf("%d descriptors of processes, want one more than %d", pidfds(), before)
	}
	c.Close()
	for deadline := time.Now().Add(time.Minute); pidfds() != before; {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors of processes, want %d", pidfds(), before)
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case <-c.Done():
		t.Error("told of an end that there was not")
	default:
	}
	if err := c.Kill(); err == nil {
		t.Error("says to have killed what it cannot reach")
	}
}

// TestExportBounded: what never ends is not read for ever.
func TestExportBounded(t *testing.T) {
	tap, err := os.CreateTemp(t.TempDir(), "tap")
	if err != nil {
		t.Fatal(err)
	}
	for n, most := range map[int]bool{MaxKeys: true, MaxKeys + 1: false} {
		c := client(t, listen(t, answer(&fake{keys: manyKeys(n), tap: tap})))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		keys, file, err := c.Export(ctx)
		cancel()
		if most != (err == nil) || most != (len(keys) == n) {
			t.Errorf("%d keys: %d, %v", n, len(keys), err)
		}
		if file != nil {
			file.Close()
		}
	}
}
