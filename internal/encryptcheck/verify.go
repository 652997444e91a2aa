package encryptcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"weft.dev/weft/internal/netns"
)

// Verdicts of a verification.
const (
	// Proven: every marked packet is accounted for by a sealed one, and nothing was readable.
	Proven = "proven"
	// Readable: a marker, or a pod's packet, was seen in cleartext.
	Readable = "readable"
	// Inconclusive: nothing was readable, but too little was seen to prove anything.
	Inconclusive = "inconclusive"
)

// sendEvery is the pause between rounds of marked packets.
const sendEvery = 40 * time.Millisecond

// settle is how long the capture goes on after the last marked packet.
const settle = 200 * time.Millisecond

// Options of a verification.
type Options struct {
	// NetNS and Interfaces are where to capture: a node's uplinks.
	NetNS      string
	Interfaces []string
	// XDPPrograms are the node's programs in native XDP, whose frames packet sockets do not see.
	XDPPrograms []XDPProgram
	// Rules say what must be sealed. Marker is set by Verify.
	Rules Rules
	// Probes send the marked packets. Peer are the addresses that sealed ones go to.
	Probes []Probe
	Peer   []netip.Addr
	// Duration is how long marked packets are sent.
	Duration time.Duration
}

// Result is what a verification found.
type Result struct {
	Verdict string `json:"verdict"`
	Why     string `json:"why"`
	// Marker is what was looked for.
	Marker  string  `json:"marker"`
	Seconds float64 `json:"seconds"`
	Sent    Sent    `json:"sent"`
	// SealedToPeer are sealed packets to the peer's addresses, of everybody.
	SealedToPeer uint64 `json:"sealedToPeer"`
	Capture      Report `json:"capture"`
	// Lost are frames that the capture could not keep.
	Lost uint64 `json:"lost"`
	// Unseen is why frames of programs in native XDP could not be seen.
	Unseen string `json:"unseen,omitempty"`
}

// Verify sends marked packets and looks at the wire meanwhile.
func Verify(ctx context.Context, o Options) (*Result, error) {
	if len(o.Probes) == 0 {
		return nil, errors.New("verify encryption: nobody is to send")
	}
	marker := NewMarker()
	o.Rules.Marker = marker
	senders, err := openSenders(o.Probes, marker)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range senders {
			s.close()
		}
	}()
	watch, err := startWatch(o)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	sendFor(ctx, senders, o.Duration)
	report, lost, err := watch.stop(ctx)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("verify encryption: %w", context.Cause(ctx))
	}
	r := &Result{Marker: string(marker), Seconds: time.Since(began).Seconds(), Capture: report,
		Lost: lost, Unseen: watch.unseen}
	for _, s := range senders {
		r.Sent.add(s.sent)
	}
	for _, a := range o.Peer {
		r.SealedToPeer += report.SealedTo[a]
	}
	r.judge()
	return r, nil
}

func openSenders(probes []Probe, marker []byte) ([]*sender, error) {
	var senders []*sender
	for _, p := range probes {
		s, err := openSender(p, marker)
		if err != nil {
			for _, s := range senders {
				s.close()
			}
			return nil, err
		}
		senders = append(senders, s)
	}
	return senders, nil
}

// sendFor sends rounds of marked packets until the time is over.
func sendFor(ctx context.Context, senders []*sender, length time.Duration) {
	over := time.After(length)
	tick := time.NewTicker(sendEvery)
	defer tick.Stop()
	for {
		for _, s := range senders {
			s.send()
		}
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-tick.C:
		}
	}
}

// judge gives the verdict.
func (r *Result) judge() {
	sent := r.Sent.Total()
	switch {
	case r.Capture.Markers > 0:
		r.Verdict, r.Why = Readable, fmt.Sprintf("the marker was readable in %d packets on the wire", r.Capture.Markers)
	case r.Capture.Plain > 0:
		r.Verdict, r.Why = Readable, fmt.Sprintf("%d packets between pods or between pods and nodes were not sealed", r.Capture.Plain)
	case sent == 0:
		r.Verdict, r.Why = Inconclusive, "no marked packet could be sent: "+r.Sent.Error
	case r.Lost > 0:
		r.Verdict, r.Why = Inconclusive, fmt.Sprintf("the capture could not keep %d frames: try again, for a shorter time", r.Lost)
	case r.SealedToPeer < sent && r.Unseen != "":
		r.Verdict, r.Why = Inconclusive, fmt.Sprintf("packets of native XDP pass no packet socket, and %s: capture on the switch, on a machine beside the node, or in mode tc", r.Unseen)
	case r.SealedToPeer == 0:
		r.Verdict, r.Why = Inconclusive, fmt.Sprintf("%d marked packets were sent, and no sealed packet to that node was seen: they were dropped (weft drops), or left by another interface", sent)
	case r.SealedToPeer < sent:
		r.Verdict, r.Why = Inconclusive, fmt.Sprintf("%d marked packets were sent, but only %d sealed packets to that node were seen: some were dropped (weft drops), or left by another interface", sent, r.SealedToPeer)
	default:
		r.Verdict, r.Why = Proven, fmt.Sprintf("%d marked packets were sent, %d sealed packets to that node were seen, and nothing of them was readable", sent, r.SealedToPeer)
	}
}

// watch is a running capture with its detector.
type watch struct {
	capture  *Capture
	tap      *Tap
	unseen   string
	detector *Detector
	cancel   context.CancelFunc
	done     sync.WaitGroup
	mu       sync.Mutex
	err      error
}

func startWatch(o Options) (*watch, error) {
	w := &watch{detector: NewDetector(o.Rules)}
	var err error
	if w.capture, err = Open(o.NetNS, o.Interfaces...); err != nil {
		return nil, err
	}
	if len(o.XDPPrograms) > 0 {
		w.tap, err = tapUplinks(o)
		if errors.Is(err, ErrNoTap) {
			w.unseen = err.Error()
		} else if err != nil {
			w.capture.Close()
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.run(func() error { return w.capture.Run(ctx, w.frame) })
	if w.tap != nil {
		w.run(func() error { return w.tap.Run(ctx, w.frame) })
	}
	return w, nil
}

// tapUplinks watches the XDP programs for frames of the uplinks.
func tapUplinks(o Options) (*Tap, error) {
	uplinks := map[uint32]string{}
	err := netns.Do(o.NetNS, func() error {
		for _, name := range o.Interfaces {
			iface, err := net.InterfaceByName(name)
			if err != nil {
				return fmt.Errorf("find %s: %w", name, err)
			}
			uplinks[uint32(iface.Index)] = name
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return TapXDP(o.XDPPrograms, uplinks)
}

func (w *watch) run(do func() error) {
	w.done.Go(func() {
		err := do()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.err = errors.Join(w.err, err)
	})
}

func (w *watch) frame(f Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.detector.Frame(f)
}

// stop waits for what is on its way, and ends the capture.
func (w *watch) stop(ctx context.Context) (Report, uint64, error) {
	select {
	case <-ctx.Done():
	case <-time.After(settle):
	}
	w.cancel()
	w.done.Wait()
	lost := w.capture.Lost()
	w.capture.Close()
	if w.tap != nil {
		lost += w.tap.Lost()
		w.tap.Close()
	}
	return w.detector.Report(), lost, w.err
}
