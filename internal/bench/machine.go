package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/bench/report"
)

// describeMachine names the machine, the kernel and the weft binary that is measured.
func describeMachine(ctx context.Context, binary string) (report.Machine, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return report.Machine{}, fmt.Errorf("read kernel version: %w", err)
	}
	m := report.Machine{
		Cores:  runtime.NumCPU(),
		Kernel: unix.ByteSliceToString(uts.Release[:]),
		Date:   time.Now().UTC().Format(time.RFC3339),
		Go:     runtime.Version(),
		Weft:   weftVersion(ctx, binary),
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = cpuModel(string(info))
	}
	if cc, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control"); err == nil {
		m.Congestion = strings.TrimSpace(string(cc))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(load), " ")
		m.Load, _ = strconv.ParseFloat(first, 64)
	}
	return m, nil
}

// cpuModel finds the model in /proc/cpuinfo; architectures name it differently.
func cpuModel(info string) string {
	for _, key := range []string{"model name", "Model", "cpu model", "Processor"} {
		for line := range strings.Lines(info) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
				return strings.TrimSpace(value)
			}
		}
	}
	return runtime.GOARCH
}

// weftVersion asks the binary; without one, or when it does not say, it is "none".
func weftVersion(ctx context.Context, binary string) string {
	if binary == "" {
		return "none"
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "version", "-o", "json").Output()
	var v struct{ Version, Commit string }
	if err != nil || json.Unmarshal(out, &v) != nil || v.Version == "" {
		return "none"
	}
	return describeVersion(v.Version, v.Commit)
}

func describeVersion(version, commit string) string {
	if commit == "" || commit == "unknown" || strings.Contains(version, commit) {
		return version
	}
	return version + " " + commit
}
