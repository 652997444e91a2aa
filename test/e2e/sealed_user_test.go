package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/traffic"
)

// userLab has sealers on two nodes and none on the third. The third node makes the wire a bridge,
// which can be watched.
const userLab = `
name: set-later
agent: {encryption: {engine: user}}
nodes:
  - {name: a, addresses: [192.0.2.1/24, "2001:db8::1/64"], podCIDRs: [10.77.1.0/24, "fd77:1::/64"]}
  - {name: b, addresses: [192.0.2.2/24, "2001:db8::2/64"], podCIDRs: [10.77.2.0/24, "fd77:2::/64"]}
  - {name: c, addresses: [192.0.2.3/24, "2001:db8::3/64"], podCIDRs: [10.77.3.0/24, "fd77:3::/64"], config: {encryption: {engine: bpf}}}
wires:
  - {name: w0, nodes: [a, b, c], offload: true}
pods:
  - {name: client, node: a, namespace: shop, addresses: [10.77.1.10, "fd77:1::10"]}
  - {name: server, node: b, namespace: shop, addresses: [10.77.2.100, "fd77:2::100"]}
  - {name: old, node: c, namespace: shop, addresses: [10.77.3.30, "fd77:3::30"]}
`

// TestSealerBulk sends bulk between nodes with a sealer and to and from one without, where the wire
// takes packets whole and where it takes them in its own size: every byte arrives, the sealers have
// cut and opened what they are there for, all of it is sealed, and no key and number occur twice.
func TestSealerBulk(t *testing.T) {
	for name, offload := range map[string]string{"offload": "offload: true", "wire-mtu": "offload: false"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, "user-"+name, parseSpec(t, strings.Replace(userLab, "offload: true", offload, 1)))
			serveEcho(t, l.Pod("server"), l.Pod("old"), l.Pod("client"))
			a, b, c := l.Node("a"), l.Node("b"), l.Node("c")
			for _, n := range agents(l) {
				keyed(t, l, n)
			}
			for _, n := range []*lab.Node{a, b} {
				sealerRuns(t, n, 0)
			}
			seen := newNonces(l)
			watch := watchWire(t, l, podRules(l), eachESP(seen.frame))
			before := map[*lab.Node]map[string]uint64{a: encryptDrops(t, a), b: encryptDrops(t, b), c: encryptDrops(t, c)}
			const size = 2 << 20 // all of it together fits what a capture keeps
			for _, pair := range []path{{l.Pod("client"), l.Pod("server")}, {l.Pod("client"), l.Pod("old")}, {l.Pod("old"), l.Pod("client")}} {
				for _, family := range []int{4, 6} {
					if _, err := traffic.EchoTCP(t.Context(), pair.from.NetNS, netip.Addr{}, addrPort(pair.to.Addr(family), echoPort), size); err != nil {
						t.Errorf("%s to %s IPv%d: %v", pair.from.Name, pair.to.Name, family, err)
					}
				}
			}
			// Most of that in packets of less than 1500 bytes, in two families: per direction and
			// peer.
			const most = 2 * size / 1500 / 2
			eventually(t, "the sealers' counts", func() error {
				return errors.Join(sealerDid(t.Context(), a, 3*most, most), sealerDid(t.Context(), b, most, most))
			})
			if e, err := encryption(t.Context(), c); err != nil || e.Sealer != nil {
				t.Errorf("node c, engine bpf: sealer %+v %v", e.Sealer, err)
			}
			for n, was := range before {
				if text := newDrops(t, n, was); text != "" {
					t.Errorf("node %s dropped %s", n.Name, text)
				}
			}
			watch.allSealed(t, l)
			seen.unique(t)
		})
	}
}

// TestSealerKilled kills sealers under load, with their agents alive and not: TCP goes on each
// time, nothing leaves in cleartext, no number is used twice, and a new sealer takes over with the
// keys of the one before.
func TestSealerKilled(t *testing.T) {
	l := newLab(t, "userkill", parseSpec(t, userLab))
	a, b := l.Node("a"), l.Node("b")
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	pids := map[*lab.Node]int{a: sealerRuns(t, a, 0), b: sealerRuns(t, b, 0)}
	seen := newNonces(l)
	watch := watchWire(t, l, podRules(l), eachESP(seen.frame))
	load := startBulk(t, path{l.Pod("client"), l.Pod("server")}, path{l.Pod("server"), l.Pod("client")})
	for _, n := range []*lab.Node{a, b} {
		t.Run("sealer of "+n.Name, func(t *testing.T) {
			kill(t, pids[n])
			load.flowing(t, "after the end of the sealer of "+n.Name)
			pids[n] = sealerRuns(t, n, pids[n])
			sealsAgain(t, load, n)
		})
	}
	t.Run("agent restarted", func(t *testing.T) {
		if err := a.RestartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := sealerRuns(t, a, 0); now != pids[a] {
			t.Errorf("the sealer's pid was %d and is %d: it should have stayed", pids[a], now)
		}
		// Its keys are known to the new agent, which gives them to the next one.
		kill(t, pids[a])
		pids[a] = sealerRuns(t, a, pids[a])
		sealsAgain(t, load, a)
	})
	t.Run("sealer and agent of b", func(t *testing.T) {
		if err := b.KillAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		kill(t, pids[b])
		load.flowing(t, "without the agent and the sealer of b")
		if err := b.StartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		pids[b] = sealerRuns(t, b, pids[b])
		// a's sealer goes on with a key that b's has no more: b's hooks open what it sends.
		before := encryptDrops(t, b)["esp_unknown_sa"]
		seals(t, a, 1000)
		load.flowing(t, "from a sealer to one that has lost its keys")
		if now := encryptDrops(t, b)["esp_unknown_sa"]; now != before {
			t.Errorf("node b refused %d packets for want of a key that its hooks hold", now-before)
		}
	})
	t.Run("sealer and agent", func(t *testing.T) {
		for _, n := range []*lab.Node{a, b} {
			if err := n.KillAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
			kill(t, pids[n])
		}
		load.flowing(t, "without agents and sealers")
		for _, n := range []*lab.Node{a, b} {
			if err := n.StartAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
			sealerRuns(t, n, pids[n])
		}
		// The keys went with both: hooks seal until there are new ones.
		load.flowing(t, "after the agents' return")
		rotate(t, l, b)
		for _, n := range []*lab.Node{a, b} {
			sealsAgain(t, load, n)
		}
	})
	load.tcpWhole(t)
	watch.allSealed(t, l)
	seen.unique(t)
}

// TestSealerRotation changes keys 50 times in a row while sealers have bulk to seal and to open:
// TCP goes on with every key and is whole at the end, nothing leaves in cleartext, nothing is
// dropped but what waits for a sealer that is late, and no key is used twice with the same number.
func TestSealerRotation(t *testing.T) {
	const rotations = 50
	l := newLab(t, "userrotate", parseSpec(t, strings.Replace(userLab, "{engine: user}}", "{engine: user}, keys: {drain: 2s}}", 1)))
	sealers := []*lab.Node{l.Node("a"), l.Node("b")}
	for _, n := range agents(l) {
		keyed(t, l, n)
	}
	for _, n := range sealers {
		sealerRuns(t, n, 0)
	}
	seen, epochs := newNonces(l), map[keyOf]bool{}
	watch := watchWire(t, l, podRules(l), eachESP(func(f encryptcheck.Frame) {
		seen.frame(f)
		if key, ok := sealersKey(f); ok {
			epochs[key] = true
		}
	}))
	load := startBulk(t, path{l.Pod("client"), l.Pod("server")}, path{l.Pod("server"), l.Pod("client")})
	lossy, before, others := 0, lostForKeys(t, l), map[*lab.Node]map[string]uint64{}
	for _, n := range agents(l) {
		others[n] = encryptDrops(t, n)
	}
	first, began := epochNow(t, l), time.Now()
	for i := range rotations {
		through := agents(l)[i%len(agents(l))]
		rotate(t, l, through)
		load.flowing(t, fmt.Sprintf("after rotation %d, through %s", i+1, through.Name))
		if now := lostForKeys(t, l); now != before {
			lossy, before = lossy+1, now
		}
	}
	took := time.Since(began)
	if last := epochNow(t, l); last != first+rotations {
		t.Errorf("epoch %d, then %d after %d rotations", first, last, rotations)
	}
	for _, n := range sealers {
		sealsAgain(t, load, n)
	}
	load.tcpWhole(t)
	// A sealer that gets no CPU for longer than send keys are kept loses what waits for it.
	if lossy > rotations/5 {
		t.Errorf("%d of %d rotations cost packets for want of a key: %d in all", lossy, rotations, before)
	}
	tolerated := []string{"no_key", "esp_unknown_sa", "sealer_queue_full"}
	for n, was := range others {
		for reason, packets := range encryptDrops(t, n) {
			if more := packets - was[reason]; more != 0 && !slices.Contains(tolerated, reason) {
				t.Errorf("node %s dropped %s %d", n.Name, reason, more)
			}
		}
	}
	watch.allSealed(t, l)
	seen.unique(t)
	// An SPI has 15 epochs: all of them, both ways.
	if len(epochs) < 2*15 {
		t.Errorf("sealers have sealed in %d epochs of both directions: %v", len(epochs), epochs)
	}
	t.Logf("%d rotations in %s, %d of them with losses", rotations, took.Round(time.Millisecond), lossy)
}

// lostForKeys is how many packets the nodes have dropped for want of a key.
func lostForKeys(t *testing.T, l *lab.Lab) (n uint64) {
	t.Helper()
	for _, node := range agents(l) {
		drops := encryptDrops(t, node)
		n += drops["no_key"] + drops["esp_unknown_sa"]
	}
	return n
}

// sealersKey is the direction and epoch of what a sealer has sealed, which its source port tells.
func sealersKey(f encryptcheck.Frame) (keyOf, bool) {
	p, err := inet.Parse(f.Data)
	if err != nil || p.SrcPort>>14 != 2 {
		return keyOf{}, false
	}
	e, ok := encryptcheck.ParseESP(p, 4500)
	return keyOf{p.Src, p.Dst, e.Epoch(), 0}, ok
}

// startBulk sends by TCP over each path, IPv4 and IPv6, in pieces that fill packets of 64 KiB.
func startBulk(t *testing.T, paths ...path) *load {
	t.Helper()
	l := &load{tcp: map[string]*traffic.TCPStream{}}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); l.stop() })
	for _, p := range paths {
		for _, family := range []int{4, 6} {
			name := fmt.Sprintf("%s to %s IPv%d", p.from.Name, p.to.Name, family)
			tcp, err := traffic.StartTCP(ctx, traffic.TCPOptions{
				From: p.from.NetNS, To: p.to.NetNS, Dst: addrPort(p.to.Addr(family), 0), BytesPerSecond: 2 << 20,
			})
			if err != nil {
				t.Fatal(name, err)
			}
			l.tcp[name] = tcp
		}
	}
	l.flowing(t, "at the start")
	return l
}

// sealerRuns waits until a node's sealer runs, another than one that was killed, and returns its
// pid.
func sealerRuns(t *testing.T, n *lab.Node, killed int) (pid int) {
	t.Helper()
	eventually(t, "the sealer of "+n.Name, func() error {
		s, err := sealerOf(t.Context(), n)
		if err != nil {
			return err
		}
		if s.PID == 0 || s.PID == killed {
			return fmt.Errorf("%+v", s)
		}
		pid = s.PID
		return nil
	})
	return pid
}

func sealerOf(ctx context.Context, n *lab.Node) (*admin.Sealer, error) {
	e, err := encryption(ctx, n)
	if err != nil {
		return nil, err
	}
	if e.Sealer == nil {
		return nil, fmt.Errorf("node %s has none: problems %v", n.Name, e.Problems)
	}
	return e.Sealer, nil
}

// sealerDid holds a sealer to so many packets.
func sealerDid(ctx context.Context, n *lab.Node, sealed, opened uint64) error {
	s, err := sealerOf(ctx, n)
	if err == nil && (s.Sealed.Packets < sealed || s.Opened.Packets < opened) {
		err = fmt.Errorf("node %s: %+v, want at least %d sealed and %d opened", n.Name, s, sealed, opened)
	}
	return err
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("pid %d", pid)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(os.NewSyscallError("kill", err))
	}
}

// eachESP calls handle for every ESP packet of frames that hold many, as a wire carries them that
// takes packets whole: they have one SPI, one size but for the last, and consecutive numbers.
func eachESP(handle func(encryptcheck.Frame)) func(encryptcheck.Frame) {
	return func(f encryptcheck.Frame) {
		p, err := inet.Parse(f.Data)
		if _, ok := encryptcheck.ParseESP(p, 4500); err != nil || !ok {
			handle(f)
			return
		}
		headers := 14 + 20
		if f.Data[14]>>4 == 6 {
			headers = 14 + 40
		}
		rest := f.Data[headers+8:]
		size := espSize(rest)
		for len(rest) > 0 {
			size = min(size, len(rest))
			one := append(append([]byte(nil), f.Data[:headers+8]...), rest[:size]...)
			setLengths(one, headers)
			handle(encryptcheck.Frame{Data: one})
			rest = rest[size:]
		}
	}
}

// espSize is where the next packet begins: the same SPI, the next number, the next IV.
func espSize(b []byte) int {
	if len(b) < 16 {
		return len(b)
	}
	spi, seq, iv := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])
	for at := 56; at+16 <= len(b); at += 4 {
		if binary.BigEndian.Uint32(b[at:]) == spi && binary.BigEndian.Uint32(b[at+4:]) == seq+1 && binary.BigEndian.Uint64(b[at+8:]) == iv+1 {
			return at
		}
	}
	return len(b)
}

// setLengths makes the IP and UDP headers of a cut frame say how long it is.
func setLengths(frame []byte, headers int) {
	binary.BigEndian.PutUint16(frame[headers+4:], uint16(len(frame)-headers))
	if headers == 14+20 {
		binary.BigEndian.PutUint16(frame[14+2:], uint16(len(frame)-14))
		inet.SetIPv4Checksum(frame[14:34])
		return
	}
	binary.BigEndian.PutUint16(frame[14+4:], uint16(len(frame)-headers))
}
