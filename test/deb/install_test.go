package deb

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weft.dev/weft/internal/netns/nettest"
	"weft.dev/weft/test/labtest"
)

// step is a block of commands of docs/install.md, and where it is typed.
type step struct{ where, commands string }

var typed = regexp.MustCompile("(?ms)^<!-- typed on ([^>]+) -->\n```sh\n(.*?)^```")

func steps(t *testing.T) []step {
	t.Helper()
	page, err := os.ReadFile(root + "/docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []step
	for _, match := range typed.FindAllStringSubmatch(string(page), -1) {
		out = append(out, step{match[1], match[2]})
	}
	if marks := strings.Count(string(page), "<!-- typed"); len(out) != marks || marks < 8 {
		t.Fatalf("docs/install.md has %d marks, and %d blocks were understood", marks, len(out))
	}
	return out
}

// pair are two machines on a wire, with the addresses of the page.
type pair struct {
	nodes []*machine
	peers string
}

func newPair(t *testing.T, deb string) *pair {
	t.Helper()
	p := &pair{peers: t.TempDir()}
	objects := t.TempDir()
	namespaces := []string{nettest.New(t, "deb"), nettest.New(t, "deb")}
	nettest.Wire(t,
		nettest.End{NetNS: namespaces[0], Name: "uplink", Addrs: []string{"192.0.2.11/24"}},
		nettest.End{NetNS: namespaces[1], Name: "uplink", Addrs: []string{"192.0.2.12/24"}})
	for i, ns := range namespaces {
		m := boot(t, fmt.Sprintf("node-%d", i+1), ns, p.peers, objects)
		m.copy(t, deb)
		p.nodes = append(p.nodes, m)
	}
	return p
}

// copy puts a package into the directory in which commands are typed.
func (m *machine) copy(t *testing.T, deb string) {
	t.Helper()
	content, err := os.ReadFile(deb)
	if err == nil {
		err = os.WriteFile(filepath.Join(m.path("/deb"), filepath.Base(deb)), content, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// follow types a step of the page.
func (p *pair) follow(t *testing.T, s step) {
	t.Helper()
	where, until := strings.CutSuffix(s.where, " until it succeeds")
	nodes := map[string][]*machine{"every node": p.nodes, "node-1": p.nodes[:1],
		"the other nodes": p.nodes[1:]}[where]
	if nodes == nil {
		t.Fatalf("docs/install.md: nobody knows where %q is", where)
	}
	for _, m := range nodes {
		if !until {
			m.run(t, s.commands)
			continue
		}
		labtest.Eventually(t, patience, m.name+": "+s.commands, func() error {
			out, err := m.try(s.commands)
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	p.publish(t)
}

// publish puts what the page copies by scp where the stand-in for that finds it.
func (p *pair) publish(t *testing.T) {
	t.Helper()
	m := p.nodes[0]
	for _, file := range []string{"/etc/weft/kek", "/root/node-2.token"} {
		content, err := os.ReadFile(m.path(file))
		if os.IsNotExist(err) {
			continue
		}
		to := filepath.Join(p.peers, "192.0.2.11", file)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o700)
		}
		if err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// addPod has the installed plugin attach a network namespace, as a runtime would.
func (m *machine) addPod(t *testing.T) {
	t.Helper()
	m.run(t, `
ip netns add pod
echo '{"cniVersion": "1.0.0", "name": "weft", "type": "weft-cni"}' |
  CNI_COMMAND=ADD CNI_CONTAINERID=$(hostname)-pod CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/weft-cni`)
}

// podAddress is a pod's IPv4 address.
func (m *machine) podAddress(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(m.run(t,
		"ip -n pod -4 -o address show eth0 | grep -o '10[.0-9]*' | head -n 1"))
}

// sealed is how many packets a node has sealed, and the sealer's pid, 0 for none.
func (m *machine) sealed() (packets, sealer int, err error) {
	out, _ := m.command("weft encrypt status -o json").Output() // an exit code 1 tells of a peer without keys
	var status struct {
		Sent   struct{ Packets int } `json:"sent"`
		Sealer struct{ PID int }     `json:"sealer"`
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return 0, 0, fmt.Errorf("%s: %w: %s", m.name, err, out)
	}
	return status.Sent.Packets, status.Sealer.PID, nil
}

// TestInstall follows docs/install.md, then upgrades under traffic, and purges: what was before is
// again.
func TestInstall(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: boots containers")
	}
	p := newPair(t, build(t, t.TempDir(), "v1.0.0"))
	a, b := p.nodes[0], p.nodes[1]
	before := a.state(t)
	for _, s := range steps(t) {
		p.follow(t, s)
	}
	a.addPod(t)
	b.addPod(t)
	ping := fmt.Sprintf("ip netns exec pod ping -n -c 20 -i 0.02 -W 5 %s", b.podAddress(t))
	labtest.Eventually(t, patience, "pods talk", func() error { _, err := a.try(ping); return err })
	if packets, _, err := a.sealed(); err != nil || packets == 0 {
		t.Errorf("%d packets were sealed, %v", packets, err)
	}
	upgrade(t, p)
	withSealer(t, p, ping)

	if now := a.state(t); len(nettest.Changes(before, now)) < 50 {
		t.Errorf("a node with a pod differs from one without Weft by %q only",
			nettest.Changes(before, now))
	}
	a.run(t, "apt purge weft")
	left := nettest.Changes(before, a.state(t))
	left = slices.DeleteFunc(left,
		func(line string) bool { return strings.Contains(line, a.path("/etc/weft")) })
	if len(left) > 0 {
		t.Errorf("after the purge:\n%s", strings.Join(left, "\n"))
	}
	if out := a.run(t,
		"cd /etc/weft; find . -path ./objects -prune -o -path ./ca -prune -o -type f -print | sort | xargs"); strings.Contains(out, "agent.yaml") || !strings.Contains(out, "./kek") {
		t.Errorf("in /etc/weft stays %s", out)
	}
}

// upgrade replaces the package on a node whose pod sends all the while, and loses nothing.
func upgrade(t *testing.T, p *pair) {
	t.Helper()
	a, b := p.nodes[0], p.nodes[1]
	a.copy(t, build(t, t.TempDir(), "v1.0.1"))
	pid := a.run(t, "systemctl show --value --property MainPID weft")
	out := a.run(t, fmt.Sprintf(`
ip netns exec pod ping -n -q -i 0.01 %s >/tmp/ping & ping=$!
apt install ./weft_1.0.1_*.deb
timeout 180 bash -c 'until weft status; do sleep 0.1; done'
kill -INT $ping; wait $ping || true; cat /tmp/ping`, b.podAddress(t)))
	if lost, err := lostPings(out); err != nil || lost > 1 {
		t.Errorf("the upgrade lost packets: %v, %s", err, out)
	}
	if now := a.run(t, "systemctl show --value --property MainPID weft"); now == pid {
		t.Error("the agent of before runs on")
	}
}

var pinged = regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`)

// lostPings is how many packets had no reply, as ping sums up. When a signal ends it, the last
// reply may be on its way.
func lostPings(summary string) (lost int, err error) {
	match := pinged.FindStringSubmatch(summary)
	if match == nil {
		return 0, fmt.Errorf("ping has not summed up")
	}
	transmitted, errSent := strconv.Atoi(match[1])
	received, errReceived := strconv.Atoi(match[2])
	if err := errors.Join(errSent, errReceived); err != nil {
		return 0, err
	}
	if received == 0 {
		return 0, fmt.Errorf("nothing was received")
	}
	return transmitted - received, nil
}

// TestLostPings: a sum that cannot be read, or of nothing, is an error.
func TestLostPings(t *testing.T) {
	for summary, want := range map[string]int{
		"812 packets transmitted, 812 received, 0% packet loss, time 9731ms":               0,
		"812 packets transmitted, 811 received, 0.123153% packet loss, time 9731ms":        1,
		"812 packets transmitted, 800 received, +2 errors, 1.47783% packet loss, time 9ms": 12,
		"1 packets transmitted, 0 received, 100% packet loss, time 0ms":                    -1,
		"ping: connect: Network is unreachable":                                            -1,
	} {
		if lost, err := lostPings(summary); (err != nil) != (want < 0) || err == nil &&
			lost != want {
			t.Errorf("%s: %d, %v", summary, lost, err)
		}
	}
}

// withSealer has the agent of the package start the sealer, inside all that the unit forbids.
func withSealer(t *testing.T, p *pair, ping string) {
	t.Helper()
	a := p.nodes[0]
	a.run(t,
		`printf 'encryption:\n  engine: user\n' >> /etc/weft/agent.yaml; systemctl restart weft`)
	labtest.Eventually(t, patience, "the sealer runs", func() error {
		_, pid, err := a.sealed()
		if err == nil && pid == 0 {
			return fmt.Errorf("there is none: %s", a.run(t, "weft encrypt status || true"))
		}
		return err
	})
	labtest.Eventually(t, patience, "pods talk", func() error { _, err := a.try(ping); return err })
	if status := a.run(t,
		"systemctl show --value --property StatusText weft"); strings.TrimSpace(status) != "ready" {
		t.Errorf("systemd knows of the agent: %s", status)
	}
}
