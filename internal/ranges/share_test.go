package ranges

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/api/v1alpha1"
)

// many are endpoints with neighbouring addresses of a network, which node names.
func many(count int, network byte, node func(i int) string) []v1alpha1.Object {
	var out []v1alpha1.Object
	for i := range count {
		a := netip.AddrFrom4([4]byte{10, network + byte(i>>16), byte(i >> 8), byte(i)})
		out = append(out,
			endpoint(fmt.Sprint("many-", network, "-", node(i), "-", i), node(i), a.String()))
	}
	return out
}

// TestSharedRoom: whoever publishes addresses without end, under whatever name, takes no other
// node's out of the memory: an address that was the cluster's stays its node's, or is nobody's. The
// same look twice comes to the same.
func TestSharedRoom(t *testing.T) {
	a, b, c := node("a", "192.0.2.1", "10.201.0.0/16"), node("b", "192.0.2.2",
		"10.202.0.0/16"), node("c", "192.0.2.3", "10.203.0.0/16")
	far := endpoint("far", "b", "172.16.0.9")
	victim := netip.MustParsePrefix("172.16.0.9/32")
	byC := func(int) string { return "c" }
	for name, row := range map[string]struct {
		looks [][]v1alpha1.Object
		lost  bool
		word  string // in what is refused at last
	}{
		"another node's, later": {looks: [][]v1alpha1.Object{{far},
			append(many(maxEndpoints, 0, byC), far)}, word: "node c publishes 8192 addresses"},
		"another node's, before": {looks: [][]v1alpha1.Object{many(maxEndpoints, 0, byC),
			append(many(maxEndpoints, 0, byC), far)}, word: "node c publishes 8192 addresses"},
		"another node's, without end": {looks: [][]v1alpha1.Object{{far},
			append(many(30000, 0, byC), far)}, word: "most of them of node c"},
		"in its node's own name": {looks: [][]v1alpha1.Object{{far},
			append(many(30000, 0, func(int) string { return "b" }), far)},
			word: "node b publishes 30001 addresses"},
		"of nodes that never were": {looks: [][]v1alpha1.Object{{far},
			many(30000, 0, func(i int) string { return fmt.Sprint("z", i) })}, lost: true,
			word: "most of them of nodes without an object"},
		"of two nodes": {looks: [][]v1alpha1.Object{{far},
			append(many(30000, 0, byC), many(30000, 0, func(int) string { return "a" })...)},
			lost: true, word: "most of them of no known node"},
		"that come and go": {looks: [][]v1alpha1.Object{{far}, many(8000, 0, byC),
			many(8000, 1, byC), many(8000, 2, byC), many(8000, 3, byC), many(8000, 4, byC)},
			lost: true, word: "most of them of node c"},
	} {
		t.Run(name, func(t *testing.T) {
			m := open(t, t.TempDir())
			clock := time.Unix(0, 0)
			m.now = func() time.Time { return clock }
			var v *View
			learn := func(objects []v1alpha1.Object) {
				clock = clock.Add(time.Second)
				var err error
				if v, err = m.Learn(Input{Self: "a",
					Snapshot: snapshot(append(objects, a, b, c)...)}); err != nil {
					t.Fatal(err)
				}
			}
			for _, objects := range row.looks {
				learn(objects)
			}
			before := told(v)
			learn(row.looks[len(row.looks)-1])
			if told(v) != before {
				t.Error("the same look came to something else")
			}
			lost := slices.ContainsFunc(v.Lost, func(e Entry) bool { return e.Prefix == victim })
			if published := slices.Contains(v.Published["b"], victim); published == lost ||
				lost != row.lost {
				t.Errorf("published %v, nobody's %v: want nobody's %v", published, lost, row.lost)
			}
			if text := strings.Join(v.Refused[max(0, len(v.Refused)-3):],
				"\n"); !strings.Contains(text, row.word) {
				t.Errorf("refused %s, want %s", text, row.word)
			}
			count := len(v.Lost)
			for _, addrs := range v.Published {
				count += len(addrs)
			}
			if count > maxEndpoints+maxLost {
				t.Errorf("%d are remembered", count)
			}
		})
	}
}

// TestEqualShares: where there is not room for all, each node has as much as another, and what has
// no room is nobody's.
func TestEqualShares(t *testing.T) {
	m := open(t, t.TempDir())
	b, c := node("b", "192.0.2.2", "10.202.0.0/16"), node("c", "192.0.2.3", "10.203.0.0/16")
	learn := func(objects ...v1alpha1.Object) *View {
		v, err := m.Learn(Input{Self: "a", Snapshot: snapshot(append(objects, b, c)...)})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	ofC := many(maxEndpoints, 0, func(int) string { return "c" })
	if v := learn(ofC...); len(v.Published["c"]) != maxEndpoints ||
		len(v.Lost)+len(v.Refused) != 0 {
		t.Errorf("alone: %d published, %d lost, refused %v", len(v.Published["c"]), len(v.Lost),
			v.Refused)
	}
	v := learn(append(ofC, many(5000, 1, func(int) string { return "b" })...)...)
	if of := [3]int{len(v.Published["b"]), len(v.Published["c"]),
		len(v.Lost)}; of != [3]int{maxEndpoints / 2, maxEndpoints / 2, 5000} ||
		len(v.Refused) != 2 {
		t.Errorf("published and lost %v, refused %v", of, v.Refused)
	}
	v = learn(ofC...)
	if len(v.Published["c"]) != maxEndpoints || len(v.Lost) != 5000 || len(v.Refused) != 0 {
		t.Errorf("alone again: %d published, %d lost, refused %v", len(v.Published["c"]),
			len(v.Lost), v.Refused)
	}
}
