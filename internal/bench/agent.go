package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"weft.dev/weft/internal/bench/report"
	"weft.dev/weft/internal/netns"
)

const (
	// agentEndpoints is how many endpoints the node of the test "agent" has.
	agentEndpoints = 100
	// cniAdds is how many pods the test "cni-add" adds per repeat.
	cniAdds = 10
)

// runCNI times ADD and DEL of the CNI plugin as a container runtime sees them: from
// starting the plugin's process to its end, inside the node's network namespace.
func runCNI(ctx context.Context, b *harness) (samples []report.Sample, err error) {
	t := newTopo()
	defer func() { err = errors.Join(err, t.close()) }()
	for i := range cniAdds {
		ns, err := t.add("cni" + strconv.Itoa(i))
		if err != nil {
			return samples, err
		}
		id := strings.TrimSuffix(t.prefix, "-") + "-" + strconv.Itoa(i)
		add, err := b.cni(ctx, "ADD", id, ns)
		if err != nil {
			return samples, err
		}
		del, err := b.cni(ctx, "DEL", id, ns)
		if err != nil {
			return samples, err
		}
		samples = append(samples,
			report.Sample{"add_ms": milliseconds(add), "del_ms": milliseconds(del)})
	}
	return samples, nil
}

// cni runs the plugin once on the near node.
func (b *harness) cni(ctx context.Context, command, id, podNS string) (time.Duration, error) {
	keys := map[string]any{"cniVersion": "1.1.0", "name": "weft-bench", "type": "weft-cni",
		"instance": b.node.Instance}
	if b.path != "" {
		keys["datapath"] = b.path
	}
	conf, err := json.Marshal(keys)
	if err != nil {
		return 0, fmt.Errorf("write CNI configuration: %w", err)
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, b.binary)
	cmd.Args = []string{"weft-cni"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(conf), &out, &out
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+id,
		"CNI_NETNS="+podNS,
		"CNI_IFNAME=eth0", "CNI_PATH=/nonexistent",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME="+id)
	start := time.Now()
	if err := netns.Do(b.node.NetNS, cmd.Run); err != nil {
		return 0, fmt.Errorf("CNI %s: %w: %s", command, err, strings.TrimSpace(out.String()))
	}
	return time.Since(start), nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// runAgent reads the near agent's memory, stops it and times its next start until ready.
func runAgent(ctx context.Context, b *harness, _ time.Duration) (report.Sample, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.node.PID()))
	if err != nil {
		return nil, fmt.Errorf("read the agent's memory: %w", err)
	}
	rss, err := parseRSS(string(status))
	if err != nil {
		return nil, err
	}
	if err := b.node.StopAgent(ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	if err := b.node.StartAgent(ctx); err != nil {
		return nil, err
	}
	return report.Sample{"rss_mib": rss, "ready_s": time.Since(start).Seconds()}, nil
}

// parseRSS finds the resident set in /proc/PID/status, in MiB.
func parseRSS(status string) (float64, error) {
	for line := range strings.Lines(status) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "VmRSS:" && fields[2] == "kB" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				return 0, fmt.Errorf("parse VmRSS: %w", err)
			}
			return kib / 1024, nil
		}
	}
	return 0, errors.New("parse /proc/PID/status: no VmRSS")
}
