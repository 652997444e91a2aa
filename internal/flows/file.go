package flows

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"weft.dev/weft/internal/logfile"
)

// fileLimit is the size at which the log file is put aside as FILE.1.
const fileLimit = 64 << 20

// fileBuffer is how many records may wait for the disk.
const fileBuffer = 4096

// writeSize is how many bytes are gathered before they are written, within a second.
const writeSize = 64 << 10

// WriteFile appends every record of the hub to a file of JSON lines until ctx ends.
// The file is readable by its owner only: it tells who talks to whom.
func WriteFile(ctx context.Context, hub *Hub, path string, log *slog.Logger) error {
	_, follower := hub.Follow(-1, nil, fileBuffer)
	defer follower.Close()
	writer := &fileWriter{file: logfile.File{Path: path, MaxSize: fileLimit, Keep: 1}}
	if err := writer.file.Open(); err != nil {
		return fmt.Errorf("flow log: %w", err)
	}
	defer writer.file.Close()
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
			log.Error("flow log is not written", "file", path, "err", err)
		}
		failed = err != nil
	}
}

// fileWriter gathers JSON lines for a log file.
type fileWriter struct {
	file  logfile.File
	lines bytes.Buffer
}

func (w *fileWriter) write(flow Flow) error {
	if err := json.NewEncoder(&w.lines).Encode(flow); err != nil {
		return fmt.Errorf("encode flow: %w", err)
	}
	if w.lines.Len() < writeSize {
		return nil
	}
	return w.flush()
}

// flush hands over what was gathered. What cannot be written is lost, as are flows in a full queue.
func (w *fileWriter) flush() error {
	if w.lines.Len() == 0 {
		return nil
	}
	defer w.lines.Reset()
	if err := w.file.Append(w.lines.Bytes()); err != nil {
		return fmt.Errorf("flow log: %w", err)
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
