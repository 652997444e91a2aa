package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/netns"
)

// FloodOptions describe a flood: frames that a pod sends as fast as one thread can, each the first
// of a flow of its own.
type FloodOptions struct {
	// NetNS and IfName are whose interface sends; SrcMAC and Src its addresses, DstMAC its
	// gateway's. IPv4 only.
	NetNS, IfName  string
	SrcMAC, DstMAC net.HardwareAddr
	Src, Dst       netip.Addr
	// OneFlow sends as many frames, all of one flow: what the packets alone do to others.
	OneFlow bool
	// Hostile has some frames of each batch take more than a flow: one is the first fragment of a
	// datagram whose rest never comes, and the TTL of floodExpiring runs out at the first router,
	// which asks for an ICMP error.
	Hostile bool
	// Nice is the sender's priority, as of nice(1): negative to have it send also where others want
	// the CPU.
	Nice int
}

// Frames of a flood: Ethernet, IPv4 without options, UDP without a checksum, so that ports may
// change without touching one.
const (
	floodIP, floodUDP = inet.EthernetLen, inet.EthernetLen + inet.IPv4Len
	floodLen          = floodUDP + inet.UDPLen + 16 // a first fragment's payload is a multiple of 8 bytes
	// floodPorts is how many source ports take turns, from 1024 up; then comes the next destination
	// port.
	floodPorts = 60000
	// floodExpiring of BatchSize frames have a TTL of 1.
	floodExpiring = 16
)

// Flood is a running flood.
type Flood struct {
	opts  FloodOptions
	batch *Batch
	fd    int
	begin time.Time
	end   time.Duration

	sent, refused atomic.Uint64
	cpu           atomic.Int64 // nanoseconds
	stop          atomic.Bool
	done          chan struct{}
	err           error // of the sender; to be read once it is done
}

// FloodReport is what a flood did.
type FloodReport struct {
	Sent    uint64        // frames, and flows unless OneFlow
	Refused uint64        // calls that the interface's full queue ended
	Elapsed time.Duration // since the start
	CPU     time.Duration // of the sender's thread; what the frames meet on a veth runs on it, too
}

// String is a line for people.
func (r FloodReport) String() string {
	return fmt.Sprintf("%d frames in %s, %.0f a second, %.0f a second of the %s that it had a CPU; the interface refused %d times",
		r.Sent, r.Elapsed.Round(time.Millisecond), float64(r.Sent)/r.Elapsed.Seconds(),
		float64(r.Sent)/r.CPU.Seconds(), r.CPU.Round(time.Millisecond), r.Refused)
}

// StartFlood starts a flood; it runs until Stop.
func StartFlood(o FloodOptions) (*Flood, error) {
	if !o.Src.Is4() || !o.Dst.Is4() || len(o.SrcMAC) != 6 || len(o.DstMAC) != 6 {
		return nil, fmt.Errorf("flood from %s (%s) to %s (%s): use IPv4 addresses and MACs of 6 bytes", o.Src, o.SrcMAC, o.Dst, o.DstMAC)
	}
	f := &Flood{opts: o, batch: o.frames(), done: make(chan struct{})}
	err := netns.Do(o.NetNS, func() (err error) {
		f.fd, err = packetSocket(o.IfName)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("flood from %s: %w", o.IfName, err)
	}
	f.begin = time.Now()
	go f.send()
	return f, nil
}

// packetSocket opens a socket that sends frames by an interface and receives none. Frames go past
// the interface's queueing discipline, and with it past its lock.
func packetSocket(ifName string) (int, error) {
	iface, err := net.InterfaceByName(ifName)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open packet socket: %w", err)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: iface.Index})
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("prepare packet socket: %w", err)
	}
	return fd, nil
}

// frames makes a batch whose frames differ in all that numbering does not change.
func (o FloodOptions) frames() *Batch {
	b := NewBatch(floodLen)
	whole := inet.Packet{
		SrcMAC: o.SrcMAC, DstMAC: o.DstMAC, Src: o.Src, Dst: o.Dst, TTL: inet.DefaultTTL,
		Protocol: unix.IPPROTO_UDP, Payload: inet.UDP(0, 0,
			make([]byte, floodLen-floodUDP-inet.UDPLen)),
	}.Frame()
	for _, frame := range b.Data {
		copy(frame, whole)
	}
	if o.Hostile {
		first := b.Data[0]
		first[floodIP+6] = 0x20 // more fragments
		binary.BigEndian.PutUint16(first[floodUDP+4:], 3000)
		for _, frame := range b.Data[1 : 1+floodExpiring] {
			frame[floodIP+8] = 1
		}
	}
	for i, frame := range b.Data {
		o.number(frame, uint64(i))
	}
	return b
}

// number makes a frame the n-th flow's, and a datagram of its own.
func (o FloodOptions) number(frame []byte, n uint64) {
	ip := frame[floodIP:floodUDP]
	binary.BigEndian.PutUint16(ip[4:], uint16(n/BatchSize))
	inet.SetIPv4Checksum(ip)
	if o.OneFlow {
		n = 0
	}
	binary.BigEndian.PutUint16(frame[floodUDP:], uint16(1024+n%floodPorts))
	binary.BigEndian.PutUint16(frame[floodUDP+2:], uint16(1024+n/floodPorts%floodPorts))
}

// send sends batch after batch. On a veth the kernel forwards what was sent before it returns, so
// the flood is as fast as the datapath and does not pile up.
func (f *Flood) send() {
	defer close(f.done)
	defer unix.Close(f.fd)
	// Never unlocked: the thread ends with the goroutine, since nobody else shall have its
	// priority.
	runtime.LockOSThread()
	if f.err = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), f.opts.Nice); f.err != nil {
		f.err = fmt.Errorf("flood: set the sender's priority: %w", f.err)
		return
	}
	for n := uint64(0); !f.stop.Load(); {
		for i, frame := range f.batch.Data {
			f.opts.number(frame, n+uint64(i))
		}
		sent, err := f.batch.Send(f.fd)
		switch {
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			f.refused.Add(1)
		case err != nil:
			f.err = fmt.Errorf("flood: send frames: %w", err)
			return
		}
		f.sent.Add(uint64(sent))
		f.cpu.Store(threadTime())
		// Whole batches, or the frames of a kind would all have the numbers that others were to
		// have.
		n += BatchSize
	}
}

// threadTime is the CPU time of the calling thread, which must be locked; 0 if the kernel does not
// say.
func threadTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano()
}

// Report is what was done so far.
func (f *Flood) Report() FloodReport {
	elapsed := f.end
	if elapsed == 0 {
		elapsed = time.Since(f.begin)
	}
	return FloodReport{Sent: f.sent.Load(), Refused: f.refused.Load(), Elapsed: elapsed,
		CPU: time.Duration(f.cpu.Load())}
}

// Stop ends the flood and reports. It may be called again, by the same goroutine.
func (f *Flood) Stop() (FloodReport, error) {
	f.stop.Store(true)
	<-f.done
	if f.end == 0 {
		f.end = time.Since(f.begin)
	}
	return f.Report(), f.err
}
