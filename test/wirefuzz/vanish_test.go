package wirefuzz

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// undelivered are the parts since the last settling that nobody got though somebody has to have
// counted them: packets to a pod's range, and forged ones from the peer that look sealed.
func (r *referee) undelivered() []*sent {
	var out []*sent
	for _, s := range r.order {
		seen := read(s.data, s.tag)
		vlan := slices.ContainsFunc(seen.tags, func(id uint16) bool { return id != 0 })
		ours := r.know.home(seen.dst) != "" && bytes.Contains(s.data, r.tap.marker(s.id))
		if s.how == notGenuine {
			ours = len(seen.tags) == 0 && !seen.fragment && seen.bad == "" && seen.proto == 17 &&
				r.know.nodes[seen.dst] == s.shot.at && r.know.nodes[seen.src] != ""
		}
		if ours && seen.ip && !vlan && s.merge == nil && len(r.tap.of(s.id)) == 0 &&
			bytes.HasPrefix(s.data, r.macs[s.shot.at]) {
			out = append(out, s)
		}
	}
	return out
}

// findVanished sends frames again, each alone, and names those that neither arrive nor are counted
// by anybody: all of them if something is missing in the counts, else one of each shape, as another
// frame's count may stand for its own.
func (r *referee) findVanished(t *testing.T, missing []*sent, all bool) {
	t.Helper()
	for _, s := range missing {
		if s.sealAs != nil || s.how == genuine || r.looked[s.shot.shape] &&
			!(all && r.alone < mostAlone) {
			continue
		}
		r.looked[s.shot.shape] = true
		r.alone++
		before := r.count(t)
		if err := r.cables[s.shot.at].send(s.part); err != nil {
			continue
		}
		r.fence(t)
		gone := true
		for range 10 {
			if gone = r.count(t).since(before) == 0 && len(r.tap.of(s.id)) == 0; !gone {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		if gone && note(r.vanished, s.shot.shape, s.envelope) && len(r.vanished) < 12 {
			say := t.Logf
			if s.shot.number < matrix { // well formed: it has a reason, and that has a name
				say = t.Errorf
			}
			say("mode %s, frame %d (%s, %s) at node %s vanished: nobody got it and nothing counted it\n%s", r.mode, s.shot.number, s.shot.shape, s.envelope, s.shot.at, r.describe(s))
		}
	}
}
