package flows

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// fileLimit is the size at which the log file is put aside as FILE.1.
const fileLimit = 64 << 20

// fileBuffer is how many records may wait for the disk.
const fileBuffer = 4096

// WriteFile appends every record of the hub to a file of JSON lines until ctx ends.
// The file is readable by its owner only: it tells who talks to whom.
func WriteFile(ctx context.Context, hub *Hub, path string, log *slog.Logger) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create directory of the flow log: %w", err)
	}
	_, follower := hub.Follow(-1, nil, fileBuffer)
	defer follower.Close()
	writer := &fileWriter{path: path, limit: fileLimit}
	if err := writer.open(); err != nil {
		return err
	}
	defer writer.close()
	flush := time.NewTicker(time.Second)
	defer flush.Stop()
	failed := false
	for {
		var err error
		select {
		case <-ctx.Done():
			return writer.drain(follower)
		case flow := <-follower.C():
			err = writer.write(flow)
		case <-flush.C:
			err = writer.flush()
		}
		if err != nil && !failed {
			log.Error("flow log is not written", "file", path, "error", err)
		}
		failed = err != nil
	}
}

// fileWriter writes JSON lines and starts the file anew when it grows too large.
type fileWriter struct {
	path  string
	limit int64
	file  *os.File
	buf   *bufio.Writer
	size  int64
}

func (w *fileWriter) open() error {
	file, err := os.OpenFile(w.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open flow log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return fmt.Errorf("open flow log: %w", err)
	}
	w.file, w.buf, w.size = file, bufio.NewWriterSize(file, 64<<10), info.Size()
	return nil
}

func (w *fileWriter) write(flow Flow) error {
	if w.file == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	line, err := json.Marshal(flow)
	if err != nil {
		return fmt.Errorf("encode flow: %w", err)
	}
	count, err := w.buf.Write(append(line, '\n'))
	w.size += int64(count)
	if err != nil {
		w.close()
		return fmt.Errorf("write flow log: %w", err)
	}
	if w.size < w.limit {
		return nil
	}
	w.close()
	if err := os.Rename(w.path, w.path+".1"); err != nil {
		return fmt.Errorf("rotate flow log: %w", err)
	}
	return w.open()
}

func (w *fileWriter) flush() error {
	if w.file == nil {
		return nil
	}
	if err := w.buf.Flush(); err != nil {
		w.close()
		return fmt.Errorf("write flow log: %w", err)
	}
	return nil
}

// drain writes what has arrived already.
func (w *fileWriter) drain(follower *Follower) error {
	for {
		select {
		case flow := <-follower.C():
			if err := w.write(flow); err != nil {
				return err
			}
		default:
			return w.flush()
		}
	}
}

func (w *fileWriter) close() {
	if w.file != nil {
		w.buf.Flush()
		w.file.Close()
		w.file = nil
	}
}
