package flows

import "testing"

// FuzzFilter looks for a pattern that is taken and then breaks matching.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{"demo/web", "web", "demo/", "10.0.0.0/8", "fe80::1%eth0",
		"::ffff:10.0.0.1", "/", "a/b/c", ""} {
		f.Add(seed, "tcp", "dropped")
	}
	f.Fuzz(func(_ *testing.T, end, protocol, verdict string) {
		matcher, err := Filter{From: []string{end}, To: []string{end}, Protocol: protocol,
			Verdict: verdict}.Compile()
		if err == nil {
			matcher.Match(Flow{})
			matcher.Match(Flow{Source: Peer{Identity: Identity{Namespace: "demo", Pod: "web"}},
				Protocol: "tcp"})
		}
	})
}
