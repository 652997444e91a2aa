package kernels

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath/bpf"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/test/espref"
)

// The guest of TestSnapshotResumed: two nodes of a lab, and a pod that sends datagrams that begin
// with the same text to the other node's pod again and again. It knows nothing of snapshots and
// gets no word from outside; the lines that it writes are all that is known of it:
//
//	ready MODE                     how node a would notice a fork; the agents are stopped from now on
//	sealed GENERATION SPI IV TEXT  a packet that node a sealed, and the VM's generation before it was sent, however late it is
//	                               captured; see fingerprint
//	silent GENERATION              a datagram that came out as no packet
//	noticed                        the generation has moved
//	resumed                        the agents run again
//	done DROPPED RECEIVED          packets refused as vm_forked, and all that the other pod got
//	failed WHY
const snapshotLab = `
name: snap
agent:
  flows: {maxEntries: 1024}
nodes:
  - {name: a, addresses: [192.0.2.1/24], podCIDRs: [10.77.1.0/24]}
  - {name: b, addresses: [192.0.2.2/24], podCIDRs: [10.77.2.0/24]}
  - {name: switch, addresses: [192.0.2.9/24], agent: false} # makes the wire a bridge, at which every frame is seen
wires:
  - {name: w0, nodes: [a, b, switch], offload: false}
pods:
  - {name: client, node: a, addresses: [10.77.1.10]}
  - {name: server, node: b, addresses: [10.77.2.10]}
`

const (
	// refusals is how often the guest tries after a fork while no agent runs, fresh how often it
	// succeeds when they do again.
	refusals, fresh = 10, 20
	// silence is how long a packet is waited for.
	silence = 500 * time.Millisecond
	// guestPatience is how long agents may take in a VM whose CPUs are busy elsewhere.
	guestPatience = 4 * time.Minute
)

// snapshotGuest is what the VM runs instead of tests.
func snapshotGuest() int {
	if err := runSnapshotGuest(); err != nil {
		fmt.Println("failed", err)
		return 1
	}
	return 0
}

func runSnapshotGuest() error {
	spec, err := lab.Parse([]byte(snapshotLab))
	if err != nil {
		return err
	}
	l, err := lab.Up(context.Background(), spec,
		lab.Options{Binary: "/weft", ReadyTimeout: guestPatience})
	if err != nil {
		return err
	}
	g := &guest{lab: l, sealed: make(chan []byte, 1<<12)}
	if err := errors.Join(g.open(), g.watch()); err != nil {
		return err
	}
	if err := g.untilKeys(); err != nil {
		return err
	}
	return g.run()
}

type guest struct {
	lab        *lab.Lab
	vm         *ebpf.Map // weft_vm of node a
	from, to   *net.UDPConn
	sealed     chan []byte // ESP packets of node a, as the wire has them
	received   atomic.Uint64
	generation uint64
}

// open opens the two pods' sockets and the datapath's count of forks.
func (g *guest) open() error {
	for pod, conn := range map[string]**net.UDPConn{"client": &g.from, "server": &g.to} {
		p := g.lab.Pod(pod)
		err := p.Do(func() (err error) {
			*conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: p.IPv4.AsSlice(), Port: 7000})
			return err
		})
		if err != nil {
			return err
		}
	}
	go func() {
		buffer := make([]byte, 1500)
		for {
			if _, err := g.to.Read(buffer); err == nil {
				g.received.Add(1)
			}
		}
	}()
	pins, err := filepath.Glob(filepath.Join(lab.BPFFS, "weft", g.lab.Node("a").Instance,
		"maps-weft_vm-*"))
	if err != nil {
		return err
	}
	if len(pins) != 1 {
		return fmt.Errorf("pins of weft_vm: %v", pins)
	}
	g.vm, err = ebpf.LoadPinnedMap(pins[0], nil)
	return err
}

// watch begins to look at the wire.
func (g *guest) watch() error {
	capture, err := encryptcheck.Open("/run/netns/weft-snap-wire-w0", "p0")
	if err != nil {
		return err
	}
	own := g.lab.Node("a").Addresses[0]
	go func() {
		err := capture.Run(context.Background(), func(f encryptcheck.Frame) {
			p, err := inet.Parse(f.Data)
			if err != nil || p.Src != own {
				return
			}
			if _, sealed := encryptcheck.ParseESP(p, encryptcheck.DefaultPort); sealed {
				g.sealed <- append([]byte(nil), p.Payload...)
			}
		})
		fmt.Println("failed", "the capture ended:", err)
	}()
	return nil
}

// untilKeys waits until both nodes have keys with each other.
func (g *guest) untilKeys() error {
	var err error
	for deadline := time.Now().Add(guestPatience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if err = errors.Join(g.keyed("a", "b"), g.keyed("b", "a")); err == nil {
			return nil
		}
	}
	return err
}

func (g *guest) keyed(node, peer string) error {
	e, err := g.encryption(node)
	if err != nil {
		return err
	}
	for _, p := range e.Peers {
		if p.Node == peer && p.SendEpoch != 0 && p.ReceiveEpoch != 0 {
			return nil
		}
	}
	return fmt.Errorf("node %s has no keys with %s: %+v, problems: %v", node, peer, e.Peers,
		e.Problems)
}

func (g *guest) encryption(node string) (*admin.Encryption, error) {
	return admin.NewClient(g.lab.Node(node).Socket).Encrypt(context.Background())
}

// run sends until the machine was forked, and proves then what that did. The agents are stopped
// before: what a snapshot's keys do is the kernel's affair alone, until they run again.
func (g *guest) run() error {
	e, err := g.encryption("a")
	if err != nil {
		return err
	}
	// All from one CPU: its lane's counter is the one that goes back.
	runtime.LockOSThread()
	var one unix.CPUSet
	one.Set(0)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	if _, err := g.probe(); err != nil { // neighbours are resolved
		return err
	}
	if err := g.signal(unix.SIGSTOP); err != nil {
		return err
	}
	fmt.Println("ready", e.VMForks.Detection)
	before := g.generation
	for g.generation == before {
		if _, err := g.probe(); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	for range refusals {
		if _, err := g.probe(); err != nil {
			return err
		}
	}
	fmt.Println("resumed")
	if err := g.signal(unix.SIGCONT); err != nil {
		return err
	}
	for came := 0; came < fresh; {
		sealed, err := g.probe()
		if err != nil {
			return err
		}
		if sealed {
			came++
		}
	}
	return g.done()
}

func (g *guest) signal(s unix.Signal) error {
	for _, node := range []string{"a", "b"} {
		if err := unix.Kill(g.lab.Node(node).PID(), s); err != nil {
			return fmt.Errorf("signal %v to the agent of node %s: %w", s, node, err)
		}
	}
	return nil
}

// probe sends the datagram and tells what came of it. The generation is read before, and is in the
// packet: one that is captured late counts for the probe that it is of.
func (g *guest) probe() (sealed bool, err error) {
	if err := g.look(); err != nil {
		return false, err
	}
	server := g.lab.Pod("server")
	if _, err := g.from.WriteToUDP(datagram(g.generation),
		&net.UDPAddr{IP: server.IPv4.AsSlice(), Port: 7000}); err != nil {
		return false, err
	}
	wait := time.After(silence)
	for {
		select {
		case esp := <-g.sealed:
			generation := g.generationOf(esp)
			fmt.Printf("sealed %d %x %x %x\n", generation, esp[:4], esp[8:16], fingerprint(esp))
			if generation == g.generation && len(g.sealed) == 0 {
				return true, nil
			}
		case <-wait:
			fmt.Println("silent", g.generation)
			return false, nil
		}
	}
}

const (
	// common begins every datagram.
	common = "the same in every packet"
	// innerHeaders are those of IPv4 and UDP, before it.
	innerHeaders = 20 + 8
	// espAlign is what ESP fills its payload up to.
	espAlign = 4
)

// datagram says by its size, which is all of it that can be read on the wire, in which generation
// it was sent.
func datagram(generation uint64) []byte {
	return append([]byte(common), make([]byte, espAlign*generation)...)
}

// generationOf is the generation that a packet's size stands for; that of now, if it is none of the
// datagrams.
func (g *guest) generationOf(esp []byte) uint64 {
	for generation := range g.generation {
		if len(esp) == espref.Len(innerHeaders+len(datagram(generation))) {
			return generation
		}
	}
	return g.generation
}

// fingerprint stands for key and nonce of a packet that carries the datagram: the ciphertext of
// what is the same in each, so one pair gives one fingerprint, whatever the key is, and another
// pair another. The headers are left out, which have an ID that the pod's kernel draws and the
// size, and so is the tag, which depends on them.
func fingerprint(esp []byte) [sha256.Size]byte {
	const begin = espref.HeaderLen + innerHeaders
	return sha256.Sum256(esp[min(len(esp), begin):min(len(esp), begin+len(common))])
}

// look reads the VM's generation.
func (g *guest) look() error {
	var vm struct{ Generation, LogSeq uint64 }
	if err := g.vm.Lookup(uint32(0), &vm); err != nil {
		return fmt.Errorf("read the VM's generation: %w", err)
	}
	if vm.Generation != g.generation {
		fmt.Println("noticed")
	}
	g.generation = vm.Generation
	return nil
}

func (g *guest) done() error {
	drops, err := admin.NewClient(g.lab.Node("a").Socket).Drops(context.Background(), true)
	if err != nil {
		return err
	}
	refused := uint64(0)
	for _, d := range drops {
		if d.Reason == bpf.ReasonVmForked.String() {
			refused += d.Packets
		}
	}
	fmt.Println("done", refused, g.received.Load())
	for { // until QEMU is told to end
		time.Sleep(time.Hour)
	}
}

// inSnapshotGuest says that this process is the VM's only one, not a test.
func inSnapshotGuest() bool { return os.Getenv("WEFT_SNAPSHOT_GUEST") != "" }
