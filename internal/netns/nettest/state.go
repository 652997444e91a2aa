package nettest

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// looks show what a network namespace holds, one fact a line. Counters are left out, and what
// changes by itself.
var looks = []string{
	"ip -o -d link show",
	"ip -o address show",
	"ip -o route show table all",
	"ip -o -6 route show table all",
	"ip rule show",
	"ip -6 rule show",
	"ip neighbor show nud permanent",
	"nft -s list ruleset",
	"tc qdisc show",
	"bpftool -j net show",
	"grep -rsI . /proc/sys/net",
}

// moving are parts of lines that change by themselves.
var moving = regexp.MustCompile(`^/proc/sys/net/(netfilter/nf_conntrack_count|ipv4/tcp_fastopen_key|\S*/(gc_)?stale_time)\b.*|\s+(gso|gro)_\S+ \d+|expires \d+sec`)

// State is what a network namespace holds (links, addresses, routes, rules, neighbours, the packet
// filter, BPF programs, sysctls), and the files below dirs, as lines to compare with those of
// another time.
func State(t testing.TB, netns string, dirs ...string) []string {
	t.Helper()
	var lines []string
	for len(lookAt(t, netns, "ip -o address show tentative")) > 0 {
		time.Sleep(50 * time.Millisecond) // until nobody else has the address
	}
	for _, look := range looks {
		lines = append(lines, lookAt(t, netns, look)...)
	}
	for _, dir := range dirs {
		lines = append(lines, files(t, dir)...)
	}
	return lines
}

func lookAt(t testing.TB, netns, look string) (lines []string) {
	t.Helper()
	argv := append([]string{"--net=" + netns}, strings.Fields(look)...)
	out, err := exec.Command("nsenter", argv...).Output()
	if err != nil && argv[1] != "grep" { // some settings cannot be read
		t.Fatalf("%s: %v", look, err)
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(moving.ReplaceAllString(line, "")); line != "" {
			lines = append(lines, argv[1]+": "+line)
		}
	}
	return lines
}

// files are those below dir, with what they are and hold.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil
		}
		if err != nil {
			return err
		}
		line := path + " " + entry.Type().String()
		if entry.Type().IsRegular() && !strings.Contains(path, "/sys/fs/bpf/") {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(content))
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// Changes are the lines that only one of two states has, after a '-' or a '+'.
func Changes(before, after []string) []string {
	var out []string
	for _, line := range before {
		if !slices.Contains(after, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			out = append(out, "+ "+line)
		}
	}
	return out
}
