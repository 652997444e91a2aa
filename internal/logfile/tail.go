package logfile

import (
	"strings"
	"sync"
)

// tailLines is how many log lines an agent keeps for sysdump.
const tailLines = 1000

// Tail is an io.Writer that remembers the last lines written to it.
type Tail struct {
	mu    sync.Mutex
	lines []string
	next  int
}

// Write remembers the lines of one write.
func (t *Tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if len(t.lines) < tailLines {
			t.lines = append(t.lines, line)
			continue
		}
		t.lines[t.next] = line
		t.next = (t.next + 1) % tailLines
	}
	return len(data), nil
}

// Lines returns what is remembered, oldest first.
func (t *Tail) Lines() []string {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return append(append([]string{}, t.lines[t.next:]...), t.lines[:t.next]...)
}
