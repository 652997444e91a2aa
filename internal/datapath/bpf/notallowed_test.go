package bpf

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNotAllowed(t *testing.T) {
	guessed := fmt.Errorf("program weft_vmfork: load program: %w (MEMLOCK may be too low, consider rlimit.RemoveMemlock)", unix.EPERM)
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"the library's guess": {guessed, "load program: operation not permitted (CAP_BPF,"},
		"another error":       {io.ErrUnexpectedEOF, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			got := NotAllowed(c.err)
			if text := got.Error(); !strings.Contains(text, c.want) ||
				strings.Contains(text, "MEMLOCK") {
				t.Errorf("it says %q", text)
			}
			if !errors.Is(got, c.err) {
				t.Errorf("%v has lost %v", got, c.err)
			}
		})
	}
	if NotAllowed(nil) != nil {
		t.Error("nil became an error")
	}
}
