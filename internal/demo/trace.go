package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"
)

// trace asks the live programs about packets to the other node and to an unknown address.
func (d *demo) trace(ctx context.Context) error {
	d.say("`weft trace` runs the programs that are attached, on their live maps, with a crafted packet that goes nowhere, and prints each decision.")
	to := d.lab.Pod(receiver)
	for _, t := range []struct{ name, target string }{
		{"trace-v4", netip.AddrPortFrom(to.IPv4, 80).String() + "/tcp"},
		{"trace-v6", netip.AddrPortFrom(to.IPv6, 53).String() + "/udp"},
	} {
		err := d.run(ctx, "trace", "--instance", d.lab.Node(nodeA).Instance, "--from", sender,
			"--to", t.target)
		if err != nil {
			d.check(t.name, false, "%v", err)
			continue
		}
		d.check(t.name, true, "%s to %s would be forwarded", sender, t.target)
	}
	return nil
}

// run runs a verb of the binary, shows what it printed and fails as it did.
func (d *demo) run(ctx context.Context, args ...string) error {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, d.opts.Binary, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	d.show("weft "+quote(args), out.String()+errOut.String())
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("weft %s: %w: %s", args[0], err, strings.TrimSpace(errOut.String()))
	} else if err != nil {
		return fmt.Errorf("run weft %s: %w", args[0], err)
	}
	return nil
}

// quote writes arguments as a shell would want them.
func quote(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if strings.ContainsAny(arg, " []*?'\"$&;|<>(){}\\`!#~") {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
