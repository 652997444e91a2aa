package bench

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/bench/load"
	"weft.dev/weft/internal/bench/mesh"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/netns"
)

// shape is how a harness is wired.
type shape string

const (
	// shapeGen is a generator's veth pair and nothing behind it: the generator's own cost.
	shapeGen shape = "gen"
	// shapeForward is one measured node with a pod and a wire to a bare far end.
	shapeForward shape = "forward"
	// shapePair is two measured nodes on a wire, two pods on the first and one on the second.
	shapePair shape = "pair"
	// shapeTunnel is two nodes whose datapaths this process runs, without agents: frames from a
	// generator in the one's pod are counted in the other's.
	shapeTunnel shape = "tunnel"
	// shapeSeal is the near half of a tunnel: its wire leads to a bare far end that counts.
	shapeSeal shape = "seal"
	// shapeNone is no harness at all: what is measured needs no network.
	shapeNone shape = "none"
)

// shapes lists those that tests ask for, in the order in which they are built.
var shapes = []shape{shapeForward, shapePair, shapeSeal, shapeTunnel, shapeNone}

// pod is one workload of a harness.
type pod struct {
	NS         string // path of its network namespace
	If         string // its interface
	IP         netip.Addr
	MAC        net.HardwareAddr
	GatewayMAC net.HardwareAddr // MAC of the interface's host side
	HostNS     string           // path of its node's network namespace
	HostIf     string           // its interface's host side
}

// peer is the pod as an end of socket traffic.
func (p pod) peer() load.Peer { return load.Peer{NS: p.NS, IP: p.IP} }

// port is one end of a wire.
type port struct {
	NS string
	If string
}

// harness is a built topology that tests run on.
type harness struct {
	variant string
	shape   shape
	wire    [2]port    // near end and far end
	near    []pod      // pods of the measured node
	far     []pod      // pods of the other node, shapePair only
	sink    port       // where shapeGen and shapeForward count
	sinkIP  netip.Addr // an address of the far node's pod range, nobody's own
	// grow brings the near node to n endpoints; nil where it is not supported.
	grow func(ctx context.Context, n int) error
	// remember has the kernel's filters let a flow in at once that they have let in before, or ask
	// their rules about every packet; nil where there are none.
	remember func(ctx context.Context, known bool) error
	// fill makes a tunnel's nodes hold something; nil where it is not supported.
	fill func(ctx context.Context, f fill) error
	// dp is the near node's datapath where this process runs it; nil where it does not.
	dp *datapath.Datapath
	// sealed says that the sink sees ESP and not the pod's own frames.
	sealed bool
	// slow says that every frame is sealed on its way.
	slow bool
	// hops is how many routers are between generator and sink.
	hops int
	// close removes everything; safe to call twice.
	close func(ctx context.Context) error

	// mesh sends HTTP/2 requests between two pods; nil but for Mesh's harnesses.
	mesh *mesh.Setup

	// Of Weft's variants only: the lab, its near node and the measured binary.
	lab    *lab.Lab
	node   *lab.Node
	binary string
	path   string // that pods ask for
}

// firstBurst is how many frames the first burst on the harness has.
func (b *harness) firstBurst() uint32 {
	if b.slow {
		return slowBurst
	}
	return firstBurst
}

// namePrefix starts the names of all namespaces, and of directories beside them, that this package
// makes itself; the process id that follows tells a left-over from a running bench.
const namePrefix = "wt-bench-"

// removeStale deletes namespaces, pins and state that a killed bench of an earlier process left.
func removeStale() error {
	for _, dir := range []string{netns.Dir, lab.BPFFS, os.TempDir()} {
		paths, err := filepath.Glob(filepath.Join(dir, namePrefix+"*"))
		if err != nil {
			return fmt.Errorf("list what is left of earlier runs: %w", err)
		}
		for _, path := range slices.DeleteFunc(paths, ownerLives) {
			if dir == netns.Dir {
				err = netns.Delete(filepath.Base(path))
			} else {
				err = os.RemoveAll(path)
			}
			if err != nil {
				return fmt.Errorf("remove what is left of an earlier run: %w", err)
			}
		}
	}
	return nil
}

// ownerLives says whether the process that made something runs, or whether that cannot be told from
// the name.
func ownerLives(path string) bool {
	id, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), namePrefix), "-")
	pid, err := strconv.Atoi(id)
	if err != nil {
		return true
	}
	_, err = os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}
