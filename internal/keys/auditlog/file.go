package auditlog

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"weft.dev/weft/internal/keys/audit"
	"weft.dev/weft/internal/logfile"
)

// Read reads an audit log's files, the oldest record first, and gives the last of them; 0 is all.
// Lines that a crash has torn are left out.
func Read(path string, last int) ([]audit.Record, error) {
	out := []audit.Record{}
	for _, file := range logfile.Files(path) {
		records, err := readFile(file)
		if err != nil {
			return nil, fmt.Errorf("read audit log: %w", err)
		}
		out = append(out, records...)
		if last > 0 && len(out) > last {
			out = append([]audit.Record(nil), out[len(out)-last:]...)
		}
	}
	return out, nil
}

func readFile(path string) ([]audit.Record, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var out []audit.Record
	for lines := bufio.NewReader(file); ; {
		line, err := lines.ReadBytes('\n')
		var r audit.Record
		if len(line) > 1 && json.Unmarshal(line, &r) == nil {
			out = append(out, r)
		}
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
