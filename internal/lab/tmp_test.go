package lab
import ("testing";"fmt";"time")
func TestTmpModes(t *testing.T) {
	for _, mode := range []string{"xdp","tc","stack"} {
	for _, off := range []bool{true,false} {
		t.Run(fmt.Sprint(mode, off), func(t *testing.T) {
			spec := Default(); spec.Name = testName("m"); spec.Agent = map[string]any{"mode": mode}
			spec.Wires[0].Offload = &off
			b := time.Now()
			l, err := Up(t.Context(), spec, Options{Binary: binary})
			if err != nil { t.Fatal(err) }
			t.Log("up", time.Since(b))
			for _, to := range []string{"db","server"} { for _, f := range []int{4,6} { reach(t, l.Pod("client"), l.Pod(to), f) } }
			if err := l.Down(t.Context()); err != nil { t.Error(err) }
		})
	}}
}
