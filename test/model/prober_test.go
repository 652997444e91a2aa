package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/inet"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/test/labtest"
)

// Everything that this test sends begins with magic; goodPort is where it should arrive, evilPort
// where it must not.
const (
	magic    = "weft-model "
	goodPort = 7008
	evilPort = 7666
)

// roundEvery is how often the prober works while a step lasts, unless a round takes long: it is to
// leave most of a busy machine to the agents, for which steps wait.
const (
	roundEvery = 25 * time.Millisecond
	roundShare = 8 // one part of so many
)

// prober has every pod and node talk to every pod, and puts frames on the wires that claim to be
// theirs. It works all the time; its lock guards who there is.
type prober struct {
	watch *watch
	plain func(*pod) bool // may travel in cleartext, at the moment

	mu     sync.Mutex
	rand   *rand.Rand
	step   int
	rounds int
	hosts  []*host
	pods   []*pod
	wrong  []string
	stop   chan struct{}
	over   sync.WaitGroup
	sent   uint64 // frames from the wire
}

// pod is a pod with the sockets that talk and listen in it.
type pod struct {
	*lab.Pod
	path  string
	sniff int
	udp   [2]int
	// heard is the round in which a sender's newest words were heard, by its name and family.
	heard map[string]int
}

func (p *pod) key(family int) string { return fmt.Sprintf("%s/%d", p.Name, family) }

var families = [2]int{4, 6}

func newPod(p *lab.Pod, path string) (*pod, error) {
	out := &pod{Pod: p, path: path, heard: map[string]int{}, sniff: -1}
	err := p.Do(func() (err error) {
		if out.udp, err = udpSockets(goodPort); err != nil {
			return err
		}
		out.sniff, err = labtest.Sniffer(p.IfName)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sockets of pod %s: %w", p.Name, err)
	}
	return out, nil
}

func (p *pod) close() {
	for _, fd := range []int{p.sniff, p.udp[0], p.udp[1]} {
		unix.Close(fd)
	}
}

// udpSockets opens a socket per family in the current namespace. What nobody reads there, nobody
// answers with an error.
func udpSockets(port int) (fds [2]int, err error) {
	for i, domain := range []int{unix.AF_INET, unix.AF_INET6} {
		if fds[i], err = unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK,
			0); err != nil {
			return fds, err
		}
		var addr unix.Sockaddr = &unix.SockaddrInet4{Port: port}
		if domain == unix.AF_INET6 {
			_ = unix.SetsockoptInt(fds[i], unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
			addr = &unix.SockaddrInet6{Port: port}
		}
		if err = unix.Bind(fds[i], addr); err != nil {
			return fds, err
		}
	}
	return fds, nil
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
}

// run works until halt.
func (p *prober) run() {
	p.stop = make(chan struct{})
	p.over.Go(func() {
		next := time.NewTimer(roundEvery)
		defer next.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-next.C:
				begin := time.Now()
				p.round(4)
				next.Reset(max(roundEvery, (roundShare-1)*time.Since(begin)))
			}
		}
	})
}

func (p *prober) halt() {
	close(p.stop)
	p.over.Wait()
	for _, o := range p.pods {
		o.close()
	}
	for _, h := range p.hosts {
		h.close()
	}
}

// roundsNow is how many rounds there were.
func (p *prober) roundsNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rounds
}

// round says something from everywhere to everywhere, injects one in share of all forged frames,
// and listens.
func (p *prober) round(share int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rounds++
	for i, family := range families {
		for _, to := range p.pods {
			dst := sockaddr(to.Addr(family), goodPort)
			for _, from := range p.pods {
				if from != to {
					p.say(from.udp[i], from.key(family), dst)
				}
			}
			for _, h := range p.hosts {
				p.say(h.udp[i], h.Name, dst)
			}
		}
		for _, h := range p.hosts {
			dst := sockaddr(h.Addresses[i], goodPort)
			for _, from := range p.pods {
				p.say(from.udp[i], from.key(family), dst)
			}
		}
	}
	p.inject(share)
	p.listen()
}

// say sends one datagram. That there is no way to go is nobody's fault here.
func (p *prober) say(fd int, who string, dst unix.Sockaddr) {
	_ = unix.Sendto(fd, fmt.Appendf(nil, "%sgood %d %d %s", magic, p.step, p.rounds, who),
		unix.MSG_DONTWAIT, dst)
}

// listen takes what has arrived in pods and on hosts.
func (p *prober) listen() {
	buf := make([]byte, 1<<16)
	for _, o := range p.pods {
		for {
			n, from, err := unix.Recvfrom(o.sniff, buf, 0)
			if err != nil {
				break
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype != unix.PACKET_OUTGOING {
				p.arrived(o, buf[:n])
			}
		}
	}
	for _, h := range p.hosts {
		for _, fd := range h.evil {
			for {
				n, _, err := unix.Recvfrom(fd, buf, 0)
				if err != nil {
					break
				}
				p.wrong = append(p.wrong,
					fmt.Sprintf("node %s accepted from the wire, in cleartext: %s", h.Name,
						buf[:n]))
			}
		}
	}
}

func (p *prober) arrived(at *pod, frame []byte) {
	packet, err := inet.Parse(frame)
	if err != nil || packet.Protocol != unix.IPPROTO_UDP ||
		!strings.HasPrefix(string(packet.Payload), magic) {
		return
	}
	text := strings.TrimPrefix(string(packet.Payload), magic)
	if packet.DstPort == evilPort {
		p.wrong = append(p.wrong,
			fmt.Sprintf("pod %s got a frame from the wire that claims to be from %s: %s", at.Name,
				packet.Src, text))
		return
	}
	var step, round int
	var who string
	if n, _ := fmt.Sscanf(text, "good %d %d %s", &step, &round, &who); n != 3 {
		return
	}
	at.heard[who] = max(at.heard[who], round)
	if !mayHear(who, at) {
		p.wrong = append(p.wrong, fmt.Sprintf("pod %s heard %s, which a policy forbids: %s",
			at.Name, who, text))
	}
}

// violations are what arrived and should not have.
func (p *prober) violations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.wrong...)
}

// with changes who there is between two rounds.
func (p *prober) with(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// silent are the ordered pairs of pods of which the second has not heard the first since a round.
func (p *prober) silent(since int) (pairs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, from := range p.pods {
		for _, to := range p.pods {
			for _, family := range families {
				if from != to && mayHear(from.key(family), to) &&
					to.heard[from.key(family)] <= since {
					pairs = append(pairs, fmt.Sprintf("%s to %s IPv%d", from.Name, to.Name, family))
				}
			}
		}
	}
	for _, h := range p.hosts {
		for _, to := range p.pods {
			if mayHear(h.Name, to) && to.heard[h.Name] <= since {
				pairs = append(pairs, fmt.Sprintf("node %s to %s", h.Name, to.Name))
			}
		}
	}
	return pairs
}
