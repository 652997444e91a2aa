package logfile

import (
	"fmt"
	"testing"
)

func TestTail(t *testing.T) {
	tail := &Tail{}
	for i := range tailLines + 2 {
		fmt.Fprintf(tail, "line %d\n", i)
	}
	lines := tail.Lines()
	if len(lines) != tailLines || lines[0] != "line 2" ||
		lines[tailLines-1] != fmt.Sprintf("line %d", tailLines+1) {
		t.Errorf("%d lines, %s to %s", len(lines), lines[0], lines[len(lines)-1])
	}
	if (*Tail)(nil).Lines() != nil {
		t.Error("no tail has lines")
	}
}
