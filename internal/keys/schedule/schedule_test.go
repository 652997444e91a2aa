package schedule

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	xhkdf "golang.org/x/crypto/hkdf"
)

type vector struct {
	DEK      string `json:"dek"`
	Exporter string `json:"exporter"`
	Number   uint64 `json:"number"`
	From     string `json:"from"`
	To       string `json:"to"`
	ID       string `json:"id"`
	Lanes    []struct {
		Key  string `json:"key"`
		Salt string `json:"salt"`
	} `json:"lanes"`
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// The values come from testdata/vectors.py, which knows only HMAC.
func TestKnownAnswers(t *testing.T) {
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) < 5 {
		t.Fatalf("%d vectors: %v", len(vectors), err)
	}
	for _, v := range vectors {
		secret, err := New(unhex(t, v.DEK), unhex(t, v.Exporter), v.Number)
		if err != nil {
			t.Fatal(err)
		}
		d, err := secret.Direction(v.From, v.To, len(v.Lanes))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%016x", d.ID); got != v.ID {
			t.Errorf("%s→%s: id %s, want %s", v.From, v.To, got, v.ID)
		}
		for i, want := range v.Lanes {
			lane := d.Lanes[i]
			if int(lane.Lane) != i || hex.EncodeToString(lane.Key[:]) != want.Key ||
				hex.EncodeToString(lane.Salt[:]) != want.Salt {
				t.Errorf("%s→%s lane %d: wrong key or salt", v.From, v.To, i)
			}
		}
	}
}

// A second opinion on HKDF: golang.org/x/crypto's, written apart from the standard library's.
func TestAgainstOtherHKDF(t *testing.T) {
	dek, exporter := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{9}, 32)
	secret, err := New(dek, exporter, 77)
	if err != nil {
		t.Fatal(err)
	}
	d, err := secret.Direction("n1", "n2", MaxLanes)
	if err != nil {
		t.Fatal(err)
	}
	prk := xhkdf.Extract(sha256.New, exporter, dek)
	for i, lane := range d.Lanes {
		info := "weft sa v1\x00n1\x00n2\x00\x00\x00\x00\x00\x00\x00\x00\x4d" + string(rune(i))
		want := make([]byte, 36)
		if _, err := io.ReadFull(xhkdf.Expand(sha256.New, prk, []byte(info)), want); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want[:32], lane.Key[:]) || !bytes.Equal(want[32:], lane.Salt[:]) {
			t.Errorf("lane %d differs", i)
		}
	}
}

func secretOf(t *testing.T, number uint64) *Secret {
	t.Helper()
	secret, err := New(bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32), number)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// Everything that names a direction must change its keys.
func TestEveryPartCounts(t *testing.T) {
	seen := map[[KeySize]byte]string{}
	ids := map[uint64]string{}
	for _, number := range []uint64{1, 2, 16, 1 << 40} {
		for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}, {"a", "bb"}, {"ab", "b"},
			{"a", "b0"}} {
			d, err := secretOf(t, number).Direction(pair[0], pair[1], 3)
			if err != nil {
				t.Fatal(err)
			}
			if other := ids[d.ID]; other != "" {
				t.Errorf("%v and %s have one id", d, other)
			}
			ids[d.ID] = d.String()
			for _, lane := range d.Lanes {
				if other := seen[lane.Key]; other != "" {
					t.Errorf("%v lane %d and %s have one key", d, lane.Lane, other)
				}
				seen[lane.Key] = d.String()
			}
		}
	}
}

func TestInputs(t *testing.T) {
	good, zeros := bytes.Repeat([]byte{1}, 32), make([]byte, 32)
	for _, c := range []struct {
		name          string
		dek, exporter []byte
		number        uint64
	}{
		{"short dek", good[:31], good, 1},
		{"long dek", append(good[:32:32], 1), good, 1},
		{"no dek", nil, good, 1},
		{"zero dek", zeros, good, 1},
		{"short exporter", good, good[:16], 1},
		{"zero exporter", good, zeros, 1},
		{"epoch 0", good, good, 0},
	} {
		if _, err := New(c.dek, c.exporter, c.number); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	secret := secretOf(t, 1)
	for _, c := range []struct {
		name, from, to string
		lanes          int
	}{
		{"no sender", "", "b", 1}, {"no receiver", "a", "", 1}, {"itself", "a", "a", 1},
		{"0 in a name", "a\x00", "b", 1},
		{"long name", strings.Repeat("a", 254), "b", 1}, {"no lanes", "a", "b", 0},
		{"lanes", "a", "b", 65}, {"negative", "a", "b", -1},
	} {
		if _, err := secret.Direction(c.from, c.to, c.lanes); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestZero(t *testing.T) {
	secret := secretOf(t, 1)
	prk := secret.prk
	d, err := secret.Direction("a", "b", 2)
	if err != nil {
		t.Fatal(err)
	}
	id := d.ID
	d.Zero()
	secret.Zero()
	secret.Zero()
	if !allZero(prk) {
		t.Error("the secret is still there")
	}
	for _, lane := range d.Lanes {
		if !allZero(lane.Key[:]) || !allZero(lane.Salt[:]) {
			t.Error("a key is still there")
		}
	}
	if d.ID != id {
		t.Error("the public fingerprint went too")
	}
	if _, err := secret.Direction("a", "b", 1); !errors.Is(err, ErrInput) {
		t.Errorf("a zeroed secret derives: %v", err)
	}
	(*Direction)(nil).Zero()
	(*Secret)(nil).Zero()
}

func TestPrintsNoKeys(t *testing.T) {
	secret := secretOf(t, 3)
	d, err := secret.Direction("a", "b", 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%x", "%s", "%q", "%d"} {
		for _, value := range []any{d, *d, secret, *secret} {
			text := fmt.Sprintf(verb, value)
			if strings.Contains(text, hex.EncodeToString(d.Lanes[0].Key[:4])) ||
				strings.Contains(text, fmt.Sprint(d.Lanes[0].Key[0], d.Lanes[0].Key[1])) ||
				strings.Contains(text, hex.EncodeToString(secret.prk[:4])) || len(text) > 80 {
				t.Errorf("%s of %T prints %s", verb, value, text)
			}
		}
	}
}

// TestExporterContext: the session's exporter is bound to the epoch, as the package's comment
// writes its number.
func TestExporterContext(t *testing.T) {
	if got := ExporterContext(0x0102030405060708); !bytes.Equal(got,
		[]byte{1, 2, 3, 4, 5, 6, 7, 8}) {
		t.Errorf("context %x", got)
	}
}

func TestWireNumber(t *testing.T) {
	for number, want := range map[uint64]uint8{1: 1, 2: 2, 14: 14, 15: 15, 16: 1, 30: 15, 31: 1} {
		if got := WireNumber(number); got != want {
			t.Errorf("epoch %d is %d on the wire, want %d", number, got, want)
		}
	}
}
