package control

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
)

// lines takes what the process says into the log. When the agent ends, the process writes into a
// pipe that nobody reads; it ignores SIGPIPE.
type lines struct {
	log   *slog.Logger
	read  *os.File // nil: nobody listens
	write *os.File
}

func newLines(log *slog.Logger) (*lines, error) {
	if log == nil {
		write, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", os.DevNull, err)
		}
		return &lines{write: write}, nil
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe for %s: %w", Program, err)
	}
	return &lines{log: log, read: read, write: write}, nil
}

// begun is to be called once the process has its end, or never will.
func (l *lines) begun() {
	l.write.Close() //nolint:errcheck // nothing was written to it
	if l.read == nil {
		return
	}
	go func() {
		defer l.read.Close() //nolint:errcheck // only read from
		scan := bufio.NewScanner(l.read)
		for scan.Scan() {
			l.log.Warn(Program, "says", scan.Text())
		}
	}()
}
