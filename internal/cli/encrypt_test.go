package cli

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/front/admin"
)

func TestBulkText(t *testing.T) {
	for _, c := range []struct {
		name     string
		sealer   *admin.Sealer
		noSealer string
		begins   string
		ends     string
	}{
		{"no sealer asked for", nil, "", "", ""},
		{"none with auto", nil, "one CPU", "by the hooks: ", "one CPU"},
		{"it does not run", &admin.Sealer{Lost: 3}, "", "by the hooks", "does not run"},
		{"it runs", &admin.Sealer{PID: 7}, "", "sealer pid 7", "opened 0 in 0"},
		{"full queue", &admin.Sealer{PID: 7, Lost: 3}, "", "sealer pid 7", ", 3 lost to a full queue"},
		{"started again", &admin.Sealer{PID: 7, Starts: 2}, "", "sealer pid 7", ", started 2 times"},
	} {
		text := bulkText(c.sealer, c.noSealer)
		if !strings.HasPrefix(text, c.begins) || !strings.HasSuffix(text, c.ends) ||
			c.begins == "" && text != "" {
			t.Errorf("%s: %q", c.name, text)
		}
	}
}
