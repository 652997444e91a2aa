package model

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/netns"
)

// evilMAC is the source of all that this test itself puts on a wire. Nobody else uses it, so what a
// node forwards of it shows.
var evilMAC = net.HardwareAddr{0x02, 0, 0, 0, 0xbe, 0xef}

// barrierType is the EtherType of frames that tell how far a capture has been read: one for local
// experiments (IEEE 802).
const barrierType = 0x88b5

// portIndex is the interface index of the wire's first port, the lab's choice; the others follow.
const portIndex = 100

// ports is the number of the wire's ports: the cables to a, b and out.
const ports = 3

// watch reads everything that passes each cable of the wire.
type watch struct {
	ns   string
	sock int // sends frames out of ports, that is, to nodes

	mu       sync.Mutex
	detector *encryptcheck.Detector
	finds    []string
	seen     [ports]uint32 // the newest barrier that was read

	taps    [ports]*tap
	down    [ports]bool // nothing passes: the node's end is down
	barrier uint32
}

// tap is the capture on one port, for as long as the port exists.
type tap struct {
	capture *encryptcheck.Capture
	cancel  context.CancelFunc
	done    chan error
}

func newWatch(ns string, rules encryptcheck.Rules) (*watch, error) {
	w := &watch{ns: ns, sock: -1, detector: encryptcheck.NewDetector(rules)}
	err := netns.Do(ns, func() (err error) {
		w.sock, err = unix.Socket(unix.AF_PACKET,
			unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open packet socket: %w", err)
	}
	for port := range ports {
		if err := w.open(port); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// open begins to read a port; a port that is made anew must not be up yet, or its first frames are
// missed.
func (w *watch) open(port int) error {
	capture, err := encryptcheck.Open(w.ns, fmt.Sprintf("p%d", port))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &tap{capture, cancel, make(chan error, 1)}
	go func() { t.done <- capture.Run(ctx, func(f encryptcheck.Frame) { w.frame(port, f) }) }()
	w.taps[port] = t
	return nil
}

// close ends a port's capture after all that it has kept was read.
func (w *watch) close(port int) error {
	t := w.taps[port]
	if t == nil {
		return nil
	}
	w.taps[port] = nil
	t.cancel()
	err := <-t.done
	if lost := t.capture.Lost(); lost > 0 {
		err = errors.Join(err,
			fmt.Errorf("the capture on p%d lost %d frames: what was in them nobody knows", port,
				lost))
	}
	t.capture.Close()
	return err
}

func (w *watch) end() error {
	var errs []error
	for port := range ports {
		errs = append(errs, w.close(port))
	}
	unix.Close(w.sock)
	return errors.Join(errs...)
}

// report is what was on the wires until now.
func (w *watch) report() encryptcheck.Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.detector.Report()
}

func (w *watch) frame(port int, f encryptcheck.Frame) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(f.Data) >= 14 && bytes.Equal(f.Data[6:12], evilMAC) {
		if binary.BigEndian.Uint16(f.Data[12:]) == barrierType && len(f.Data) >= 18 {
			w.seen[port] = binary.BigEndian.Uint32(f.Data[14:])
		}
		return
	}
	kind := w.detector.Frame(f)
	if (kind == encryptcheck.Plain || kind != encryptcheck.Allowed && readable(f.Data) != "") &&
		len(w.finds) < 16 {
		way := "to"
		if !f.Outgoing {
			way = "from"
		}
		w.finds = append(w.finds,
			fmt.Sprintf("%s %s on the cable %s node %s: %q: %x",
				time.Now().UTC().Format("15:04:05.000"), kind, way, nodeNames[port],
				readable(f.Data), f.Data[:min(len(f.Data), 120)]))
	}
}

// readable is what a frame says that this test had somebody send.
func readable(frame []byte) string {
	if at := bytes.Index(frame, []byte(magic)); at >= 0 {
		return string(frame[at:])
	}
	return ""
}

// send puts a frame on the cable to a node. A cable that is down or gone takes none.
func (w *watch) send(port int, frame []byte) bool {
	return unix.Sendto(w.sock, frame, 0,
		&unix.SockaddrLinklayer{Ifindex: portIndex + port, Halen: 6}) == nil
}

// settle waits until everything has been read that was on the wire before.
func (w *watch) settle() error {
	w.barrier++
	frame := append(append(bytes.Clone(evilMAC), evilMAC...), 0x88, 0xb5)
	frame = append(binary.BigEndian.AppendUint32(frame, w.barrier), make([]byte, 46)...)
	for port, t := range w.taps {
		begin := time.Now()
		for tries := 0; t != nil && !w.down[port] && !w.passed(port); tries++ {
			if tries%50 == 0 { // a cable that has just come up loses frames for a moment
				w.send(port, frame)
			}
			if time.Since(begin) > patience {
				return fmt.Errorf("the capture on p%d does not get on", port)
			}
			time.Sleep(200 * time.Microsecond)
		}
	}
	return nil
}

func (w *watch) passed(port int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[port] >= w.barrier
}

// violations are the frames that were readable and should not have been.
func (w *watch) violations() (found []string) {
	w.mu.Lock()
	report := w.detector.Report()
	found = append(found, w.finds...)
	w.mu.Unlock()
	if !report.Clean() && len(found) == 0 {
		found = append(found, fmt.Sprintf("%+v", report))
	}
	for port, t := range w.taps {
		if t != nil && t.capture.Lost() > 0 {
			found = append(found,
				fmt.Sprintf("the capture on p%d lost %d frames", port, t.capture.Lost()))
		}
	}
	return found
}
