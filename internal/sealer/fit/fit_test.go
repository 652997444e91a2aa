package fit

import (
	"errors"
	"strings"
	"testing"

	"weft.dev/weft/internal/config"
)

type host struct {
	cpus   int
	aes    bool
	sealer error
}

func (h host) CPUs() int               { return h.cpus }
func (h host) AES() bool               { return h.aes }
func (h host) Sealer() (string, error) { return "/usr/bin/weft-sealer", h.sealer }

func TestReason(t *testing.T) {
	fits := host{cpus: 2, aes: true}
	for _, c := range []struct {
		name string
		edit func(*config.Config)
		host host
		want string // "" for a sealer
	}{
		{name: "two CPUs with AES", host: fits},
		{name: "mode tc", host: fits, edit: func(c *config.Config) { c.Mode = config.ModeTC }},
		{name: "mode xdp", host: fits, edit: func(c *config.Config) { c.Mode = config.ModeXDP },
			want: "mode xdp"},
		{name: "mode stack", host: fits, edit: func(c *config.Config) { c.Mode = config.ModeStack },
			want: "mode stack"},
		{name: "a port of sealers", host: fits,
			edit: func(c *config.Config) { c.Encryption.Port = 40000 }, want: "port 40000"},
		{name: "all lanes", host: fits,
			edit: func(c *config.Config) { c.Encryption.Lanes = config.MaxLanes }, want: "lanes 64"},
		{name: "one CPU", host: host{cpus: 1, aes: true}, want: "one CPU"},
		{name: "no AES", host: host{cpus: 8}, want: "no AES"},
		{name: "not installed", host: host{cpus: 2, aes: true, sealer: errors.New("not found")},
			want: "not found"},
	} {
		cfg := config.Default()
		if c.edit != nil {
			c.edit(cfg)
		}
		got := Reason(cfg, c.host)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
