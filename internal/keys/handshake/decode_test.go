package handshake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestDecodeFrame: each frame has one meaning, and nothing in it that its type does not have.
func TestDecodeFrame(t *testing.T) {
	hello := func(change ...string) string {
		text := fmt.Sprintf(`{"type":"hello","hello":{"version":%d,"node":"a","epoch":1,"lanes":8,"txID":"0000000000000000","rxID":"00000000000000ff","offer":"0123456789abcdef"}}`, Version)
		return strings.NewReplacer(change...).Replace(text)
	}
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"done":                     {`{"type":"done"}`, true},
		"done, then more":          {`{"type":"done"} {"type":"done"}`, false},
		"done, then rubbish":       {`{"type":"done"}x`, false},
		"done with an id":          {`{"type":"done","id":"0123456789abcdef"}`, false},
		"done with a reason":       {`{"type":"done","text":"x"}`, false},
		"busy with a hello":        {hello(`"type":"hello"`, `"type":"busy"`), false},
		"rx_ready without an id":   {`{"type":"rx_ready"}`, false},
		"rx_ready with a short id": {`{"type":"rx_ready","id":"1"}`, false},
		"hello":                    {hello(), true},
		"hello of most lanes":      {hello(`"lanes":8`, `"lanes":64`), true},
		"hello of too many lanes":  {hello(`"lanes":8`, `"lanes":65`), false},
		"hello of no lanes":        {hello(`"lanes":8`, `"lanes":0`), false},
		"hello of epoch 0":         {hello(`"epoch":1`, `"epoch":0`), false},
		"hello of nobody":          {hello(`"node":"a"`, `"node":""`), false},
		"hello of a long name": {hello(`"node":"a"`, `"node":"`+strings.Repeat("a", 254)+`"`),
			false},
		"hello of another version": {hello(fmt.Sprintf(`"version":%d`, Version), `"version":0`),
			false},
		"hello without an offer":    {hello(`0123456789abcdef`, `0000000000000000`), false},
		"hello without its fields":  {`{"type":"hello"}`, false},
		"a frame without a type":    {`{}`, false},
		"a refusal without reasons": {`{"type":"refuse"}`, true},
	} {
		if _, err := decodeFrame([]byte(c.text)); (err == nil) != c.ok ||
			(err != nil && !errors.Is(err, ErrProtocol)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f, err := decodeFrame([]byte(`{"type":"refuse","code":"a\u001b[2J","text":"no\nlevel=info msg=forged\u202e` + strings.Repeat("x", 500) + `"}`))
	if err != nil || strings.ContainsAny(f.Code+f.Text, "\x1b\n\u202e") ||
		len(f.Text) > maxText+10 {
		t.Errorf("a refusal that writes into a log: %+v, %v", f, err)
	}
}

// TestDEKsAreZeroedAfterUse: a session has a copy of the epoch's key no longer than it derives from
// it.
func TestDEKsAreZeroedAfterUse(t *testing.T) {
	b := newFixture(t)
	var mu sync.Mutex
	var copies [][]byte
	watched := func(c *Config) {
		inner := c.DEK
		c.DEK = func(ctx context.Context, epoch uint64) ([]byte, error) {
			dek, err := inner(ctx, epoch)
			mu.Lock()
			defer mu.Unlock()
			copies = append(copies, dek)
			return dek, err
		}
	}
	x, y := b.node("x", 1, watched), b.node("y", 1, watched)
	y.listen()
	b.exchange(x, y, 1)
	if err := y.waitServed(1); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(copies) != 2 {
		t.Fatalf("%d copies were taken", len(copies))
	}
	for _, dek := range copies {
		if string(dek) != string(make([]byte, len(dek))) {
			t.Error("a copy of the epoch's key is still there")
		}
	}
}
