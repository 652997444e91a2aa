package wirefuzz

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// finding is one thing that is wrong, however often and in whatever envelope it was seen.
type finding struct {
	times     int
	envelopes map[string]bool
}

// note counts a finding and says whether it is a new one.
func note(in map[string]*finding, what, envelope string) bool {
	f := in[what]
	if f == nil {
		f = &finding{envelopes: map[string]bool{}}
		in[what] = f
	}
	f.times++
	if envelope != "" {
		f.envelopes[envelope] = true
	}
	return f.times == 1
}

// violation tells of one, in full the first time.
func (r *referee) violation(t *testing.T, s *sent, what, who, why string) {
	t.Helper()
	random := s.shot.number >= matrix
	if note(r.problems, fmt.Sprintf("%s %s: %s", s.shot.shape, what, why), s.envelope) &&
		r.shown[random] < mostShown || replay {
		r.shown[random]++
		t.Errorf("mode %s, frame %d at node %s (%s, %s): %s, %s; the specification: %s\n%s", r.mode,
			s.shot.number, s.shot.at, s.shot.shape, s.envelope, what, who, why, r.describe(s))
	}
}

// describe is a frame as hex and in words, and how to send it again.
func (r *referee) describe(s *sent) string {
	text := fmt.Sprintf("  replay: WEFT_FUZZ_SEED=%d WEFT_FUZZ_FRAME=%d go test ./test/wirefuzz -run TestWire/%s -v\n  hex:    %s\n", seed, s.shot.number, r.mode, hex.EncodeToString(s.data[:min(len(s.data), 400)]))
	if s.tag != nil {
		text += fmt.Sprintf("  tag beside the frame: %#04x\n", *s.tag)
	}
	if s.sealAs != nil {
		text += fmt.Sprintf("  sealed by node %s under identity %d\n", other(s.shot.at), *s.sealAs)
	}
	decoded := gopacket.NewPacket(s.data, layers.LayerTypeEthernet, gopacket.Default).String()
	for _, line := range strings.SplitN(decoded, "\n", 8) {
		if strings.HasPrefix(line, "- Layer") {
			text += "  " + line[:min(len(line), 260)] + "\n"
		}
	}
	return text
}

// lines are findings, one a line.
func lines(in map[string]*finding) string {
	var out []string
	for what, f := range in {
		text := fmt.Sprintf("%6d × %s", f.times, what)
		if len(f.envelopes) > 0 {
			text += " {" + strings.Join(slices.Sorted(maps.Keys(f.envelopes)), ", ") + "}"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// report ends a mode.
func (r *referee) report(t *testing.T, shots int) {
	t.Helper()
	t.Logf("mode %s, seed %d: %d shots, %d refused on sending, %d answers that quote a frame, %d sent again alone; %d kinds of violation, %d shapes vanished uncounted",
		r.mode, seed, shots, r.refused, r.reflect, r.alone, len(r.problems), len(r.vanished))
	if len(r.problems) > 0 {
		t.Errorf("mode %s, violations:\n%s", r.mode, lines(r.problems))
	}
	if len(r.vanished) > 0 {
		t.Logf("mode %s, vanished uncounted:\n%s", r.mode, lines(r.vanished))
	}
}

// tell says what became of the one shot that was replayed.
func (r *referee) tell(t *testing.T) {
	t.Helper()
	for _, s := range r.owners {
		if s == nil {
			continue
		}
		t.Logf("frame %d at node %s (%s, %s):\n%s", s.shot.number, s.shot.at, s.shot.shape,
			s.envelope, r.describe(s))
		for _, a := range r.tap.of(s.id) {
			t.Logf("  reached %s %s, from %s to %s", kindOf(a), a.who, a.src, a.dst)
		}
	}
}
