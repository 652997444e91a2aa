package demo

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
)

const (
	// secretCount is how many messages are sent while somebody listens.
	secretCount = 20
	// dumpSize is how much of a frame is shown.
	dumpSize = 128
	// keysLimit is how long the agents may take to agree on keys.
	keysLimit = time.Minute
	// espHeaders are the bytes of a frame before the sealed part: Ethernet, IPv4, UDP, SPI,
	// sequence number, IV.
	espHeaders = inet.EthernetLen + inet.IPv4Len + inet.UDPLen + 16
)

// overheard is what a listener on the wire got.
type overheard struct {
	report encryptcheck.Report
	// marked and sealed are the first frames of their kind.
	marked, sealed []byte
	delivered      uint64
}

// wire shows what somebody on the wire reads, without encryption and with it.
func (d *demo) wire(ctx context.Context) error {
	d.say("Weft seals by default. To show what that changes, both agents run for a moment with `encryption.mode: off`, as a plain network. The pod %s sends %d messages to %s on the other node, and every frame that reaches node %s is captured as whoever sits on the wire could.", sender, secretCount, receiver, nodeB)
	if err := d.encrypt(ctx, config.EncryptionOff); err != nil {
		return err
	}
	marker := encryptcheck.NewMarker()
	before, err := d.listenIn(ctx, marker)
	if err != nil {
		return errors.Join(err, d.encrypt(ctx, config.EncryptionStrict))
	}
	d.say("Without encryption, one of them on the wire, from its IP header on:")
	d.dump(before.marked)
	d.check("wire-before", before.report.Markers >= secretCount && before.delivered == secretCount,
		"encryption off: %d of %d messages delivered, %d frames readable", before.delivered,
		secretCount, before.report.Markers)
	if err := d.encrypt(ctx, config.EncryptionStrict); err != nil {
		return err
	}
	after, err := d.listenIn(ctx, marker)
	if err != nil {
		return err
	}
	d.say("The same messages after the agents run with their own configuration again, `encryption.mode: strict`: addresses of nodes, UDP port 4500 (11 94), SPI, sequence number, IV, and then nothing that could be told from noise. The pods' addresses are inside.")
	d.dump(after.sealed)
	r := after.report
	d.check("wire-after", r.Clean() && r.Sealed >= secretCount && after.delivered == secretCount,
		"encryption on: %d of %d messages delivered, %d sealed frames, %d readable, %d of pods in cleartext", after.delivered, secretCount, r.Sealed, r.Markers, r.Plain)
	d.fact(fmt.Sprintf("%d then %d", before.report.Markers, r.Markers),
		"frames on the wire in which a pod's messages could be read, encryption off, then on")
	instance := d.lab.Node(nodeA).Instance
	err = d.run(ctx, "encrypt", "verify", "--instance", instance, "--from", sender, "--to",
		receiver, "--duration", "2s")
	d.check("wire-verify", err == nil,
		"weft encrypt verify proves it on a running node, with UDP, TCP and ICMP%s", because(err))
	return d.run(ctx, "encrypt", "status", "--instance", instance)
}

// listenIn captures what reaches node b while marked messages are sent, in both families in turn.
func (d *demo) listenIn(ctx context.Context, marker []byte) (*overheard, error) {
	node := d.lab.Node(nodeB)
	sinks, err := listenBoth(d.lab.Pod(receiver), secret(marker))
	if err != nil {
		return nil, err
	}
	defer sinks.close()
	capture, err := encryptcheck.Open(node.NetNS, node.Uplinks...)
	if err != nil {
		return nil, err
	}
	defer capture.Close()
	heard := &overheard{}
	detector := encryptcheck.NewDetector(d.podRules(marker))
	running, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		err = capture.Run(running, func(f encryptcheck.Frame) { heard.frame(detector, f, marker) })
	})
	sendErr := sendSecrets(d.lab.Pod(sender), sinks, secret(marker))
	waitErr := await(ctx, func() (bool, error) {
		heard.delivered = sinks.received("v4") + sinks.received("v6")
		return heard.delivered >= secretCount, nil
	})
	stop()
	done.Wait()
	heard.report = detector.Report()
	return heard, errors.Join(err, sendErr, waitErr)
}

// frame looks at a frame and keeps the first of a kind.
func (o *overheard) frame(detector *encryptcheck.Detector, f encryptcheck.Frame, marker []byte) {
	if detector.Frame(f) == encryptcheck.Sealed && o.sealed == nil && !f.Outgoing &&
		len(f.Data) > espHeaders+len(marker) {
		o.sealed = bytes.Clone(f.Data)
	}
	if o.marked == nil && bytes.Contains(f.Data, marker) {
		o.marked = bytes.Clone(f.Data)
	}
}

// secret is a message that nobody else should read.
func secret(marker []byte) []byte {
	return append([]byte("the password is swordfish, "),
		encryptcheck.Fill(marker, 2*len(marker))...)
}

func sendSecrets(from *lab.Pod, to *sinkPair, text []byte) error {
	return from.Do(func() error {
		for i := range secretCount {
			conn, err := net.DialUDP("udp", nil,
				net.UDPAddrFromAddrPort([]*sink{to.v4, to.v6}[i%2].at))
			if err != nil {
				return fmt.Errorf("send from %s: %w", from.Key(), err)
			}
			_, err = conn.Write(text)
			conn.Close()
			if err != nil {
				return fmt.Errorf("send from %s: %w", from.Key(), err)
			}
		}
		return nil
	})
}

// podRules say that everything between the lab's pods and nodes must be sealed.
func (d *demo) podRules(marker []byte) encryptcheck.Rules {
	rules := encryptcheck.Rules{Marker: marker}
	for _, n := range d.lab.Nodes() {
		rules.Pods, rules.Nodes = append(rules.Pods, n.PodCIDRs...), append(rules.Nodes,
			n.Addresses...)
	}
	return rules
}

// dump shows the beginning of a frame without its Ethernet header.
func (d *demo) dump(frame []byte) {
	if len(frame) <= inet.EthernetLen {
		d.say("(no such frame was captured)")
		return
	}
	text := hex.Dump(frame[inet.EthernetLen:min(len(frame), inet.EthernetLen+dumpSize)])
	d.print(text)
	d.add(block{Output: strings.TrimRight(text, "\n")})
}

// encrypt has both agents run in a mode of encryption, and with strict waits until they have keys.
func (d *demo) encrypt(ctx context.Context, mode string) error {
	for _, n := range d.lab.Nodes() {
		if err := setEncryption(n, mode); err != nil {
			return err
		}
		if err := n.RestartAgent(ctx); err != nil {
			return err
		}
	}
	if mode == config.EncryptionOff {
		return nil
	}
	return d.keyed(ctx)
}

func setEncryption(n *lab.Node, mode string) error {
	text, err := os.ReadFile(n.ConfigFile)
	if err != nil {
		return fmt.Errorf("read configuration of node %s: %w", n.Name, err)
	}
	keys := map[string]any{}
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return fmt.Errorf("read configuration of node %s: %w", n.Name, err)
	}
	keys["encryption"] = map[string]any{"mode": mode}
	if text, err = yaml.Marshal(keys); err != nil {
		return fmt.Errorf("write configuration of node %s: %w", n.Name, err)
	}
	if err := os.WriteFile(n.ConfigFile, text, 0o644); err != nil {
		return fmt.Errorf("write configuration of node %s: %w", n.Name, err)
	}
	return nil
}

// keyed waits until every agent has keys with every other, in both directions.
func (d *demo) keyed(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, keysLimit,
		errors.New("the agents did not agree on keys in time"))
	defer cancel()
	for {
		behind, err := d.behind(ctx, 1)
		if err == nil && behind == 0 {
			return nil
		}
		if wait := pause(ctx, 20*time.Millisecond); wait != nil {
			return errors.Join(err, wait)
		}
	}
}

// behind is how many directions between the agents do not yet run on an epoch, or on a later one.
func (d *demo) behind(ctx context.Context, epoch uint64) (int, error) {
	behind := 0
	for _, n := range d.lab.Nodes() {
		e, err := admin.NewClient(n.Socket).Encrypt(ctx)
		if err != nil {
			return 0, fmt.Errorf("ask the agent of node %s: %w", n.Name, err)
		}
		behind += 2 * (len(d.lab.Nodes()) - 1 - len(e.Peers))
		for _, p := range e.Peers {
			if p.SendEpoch < epoch {
				behind++
			}
			if p.ReceiveEpoch < epoch {
				behind++
			}
		}
	}
	return behind, nil
}
