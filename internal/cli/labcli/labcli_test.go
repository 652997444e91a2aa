package labcli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"weft.dev/weft/internal/cli/cmdutil"
)

func TestCalls(t *testing.T) {
	os.Unsetenv("WEFT_LAB")
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"lab example", cmdutil.ExitOK, "wires:"},
		{"lab up -f /nowhere/at/all", cmdutil.ExitFailed, "/nowhere/at/all"},
		{"lab status NO_SUCH", cmdutil.ExitFailed, "NO_SUCH"},
		{"lab exec client", cmdutil.ExitUsage, "requires at least 2 arg"},
		{"lab exec client --", cmdutil.ExitUsage, "name a command"},
		{"lab upp", cmdutil.ExitUsage, "unknown command \"upp\" for \"weft lab\""},
		{"lab status -o xml", cmdutil.ExitUsage, "use one of table, wide, json, yaml"},
		{"__complete lab up --sysctls ", cmdutil.ExitOK, "distribution"},
		{"bench route -o xml", cmdutil.ExitUsage, "use one of table, wide, json, yaml"},
		{"bench route -o benchfmt --test nothing", cmdutil.ExitFailed, "\"nothing\" is not known"},
		{"bench route --help", cmdutil.ExitOK, "weft bench route --quick"},
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), strings.Split(test.args, " "), &out, &errOut)
		text := out.String()
		if test.code != cmdutil.ExitOK {
			text = errOut.String()
			if !strings.HasPrefix(text, "weft: ") || strings.Contains(text, "goroutine") {
				t.Errorf("weft %s: not a sentence: %s", test.args, text)
			}
		}
		if code != test.code || !strings.Contains(text, test.want) {
			t.Errorf("weft %s: code %d\n%s%s", test.args, code, &out, &errOut)
		}
	}
}
