package lab

import (
	"os"
	"strings"
	"testing"
)

// TestSysctls: nodes and pods start as on a machine on which a distribution's systemd has run,
// whatever the machine's own settings are, or with the kernel's when asked for; interfaces that
// come later, too.
func TestSysctls(t *testing.T) {
	for _, tt := range []struct {
		name, kind string
		want       map[string]string
	}{
		{"distribution by default", "", map[string]string{
			"conf/all/rp_filter": "2", "conf/default/rp_filter": "2", "conf/lo/rp_filter": "2",
			"conf/IF/rp_filter":            "2",
			"conf/all/accept_source_route": "0", "conf/IF/accept_source_route": "0",
			"conf/IF/promote_secondaries":  "1",
			"conf/all/promote_secondaries": "1", "ping_group_range": "0\t2147483647",
		}},
		{"kernel", SysctlsKernel, map[string]string{
			"conf/all/rp_filter": "0", "conf/default/rp_filter": "0", "conf/lo/rp_filter": "0",
			"conf/IF/rp_filter":            "0",
			"conf/all/accept_source_route": "0", "conf/IF/accept_source_route": "1",
			"conf/IF/promote_secondaries":  "0",
			"conf/all/promote_secondaries": "0", "ping_group_range": "1\t0",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := bareSpec(testName("sys"), 2)
			spec.Sysctls = tt.kind
			l := up(t, spec)
			for where, do := range map[string]func(func() error) error{l.Nodes()[0].Uplinks[0]: l.Nodes()[0].Do, PodIfName: l.Pods()[0].Do} {
				for name, want := range tt.want {
					path := "/proc/sys/net/ipv4/" + strings.Replace(name, "IF", where, 1)
					err := do(func() error {
						text, err := os.ReadFile(path)
						if got := strings.TrimSpace(string(text)); err == nil && got != want {
							t.Errorf("%s at %s is %q, want %q", path, where, got, want)
						}
						return err
					})
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}
