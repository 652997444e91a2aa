package cli

import (
	"testing"

	"weft.dev/weft/internal/flows"
)

// FuzzParseTarget holds what is taken to what the agent will take.
func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{"10.0.0.1:80/tcp", "[fd00::1]:53/udp", "10.0.0.1/icmp",
		"fd00::1/58", "a/b", "/", "1.2.3.4:99999/tcp", "[::ffff:1.2.3.4]:1/6"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		addr, protocol, err := parseTarget(text)
		if err != nil {
			return
		}
		if !addr.IsValid() {
			t.Errorf("%q gives no address", text)
		}
		if _, err := flows.ParseProtocol(protocol); err != nil {
			t.Errorf("%q gives protocol %q: %v", text, protocol, err)
		}
	})
}
