package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/encryptcheck"
	"weft.dev/weft/internal/front/admin"
)

// hostName is what --from calls the node itself.
const hostName = "host"

// verification is what `weft encrypt verify` prints.
type verification struct {
	Node       string       `json:"node"`
	From       string       `json:"from"`
	To         string       `json:"to"`
	Addresses  []netip.Addr `json:"addresses"`
	Peer       string       `json:"peer"`
	Interfaces []string     `json:"interfaces"`
	*encryptcheck.Result
}

// verifyCall is one call of the verb and what it asked the agent for.
type verifyCall struct {
	from, to   string
	interfaces []string
	duration   time.Duration

	status     *admin.Status
	encryption *admin.Encryption
	nodes      []admin.Node
	endpoints  []admin.Endpoint
}

func newEncryptVerify(a *app) *cobra.Command {
	call := &verifyCall{}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove on the wire that nothing is readable",
		Long: `Send marked packets from a pod of this node to a pod of another (UDP, TCP and ICMP, in every family that
both have), capture on the uplinks meanwhile, and look for the marker in every frame that passed. Traffic of
others is looked at as well: a packet between pods, or between a pod and a node, must be sealed unless an
EncryptionPolicy names it.

It is proven when no marker and no such packet was readable, the capture lost nothing, and at least as many
sealed packets to that node were seen as marked ones were sent. The marked packets go to port 9, discard;
a pod that listens there gets them. Run it as root on the node.

The exit code is 0 when proven, 5 when something was readable and 6 when too little was seen to tell.`,
		Example: "  weft encrypt verify\n  weft encrypt verify --from shop/client --to shop/server --duration 10s\n  weft encrypt verify --from host --to 10.77.2.100 -o json",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.verifyEncryption(cmd.Context(), call) },
	}
	flags := cmd.Flags()
	flags.DurationVar(&call.duration, "duration", 5*time.Second, "how long marked packets are sent")
	flags.StringSliceVar(&call.interfaces, "interface", nil,
		"capture on these interfaces (default: the node's uplinks)")
	flags.StringVar(&call.from, "from", "",
		"the pod of this node that sends: namespace/pod, pod or endpoint ID; or host (default: any)")
	flags.StringVar(&call.to, "to", "",
		"the pod or address of another node that it sends to (default: any pod)")
	_ = cmd.RegisterFlagCompletionFunc("from", a.completePods)
	return cmd
}

func (a *app) verifyEncryption(ctx context.Context, call *verifyCall) error {
	if call.duration < 100*time.Millisecond || call.duration > time.Hour {
		return cmdutil.UsageError("--duration: %s: use 100ms to 1h", call.duration)
	}
	if os.Geteuid() != 0 {
		return errors.New("capturing on the uplinks needs root: run it with sudo")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	if err := call.ask(ctx, client); err != nil {
		return err
	}
	result := &verification{Node: call.status.Node, Interfaces: call.status.Uplinks}
	options, err := call.options(result)
	if err != nil {
		return err
	}
	if result.Result, err = encryptcheck.Verify(ctx, options); err != nil {
		return err
	}
	if err := a.Print(result,
		func(w io.Writer,
			wide bool) error {
			return writeVerification(w, result, wide)
		}); err != nil {
		return err
	}
	switch result.Verdict {
	case encryptcheck.Proven:
		return nil
	case encryptcheck.Readable:
		return &cmdutil.ExitError{Code: exitReadable}
	}
	return &cmdutil.ExitError{Code: exitInconclusive}
}

// ask gets what the agent knows.
func (c *verifyCall) ask(ctx context.Context, client *admin.Client) (err error) {
	if c.status, err = client.Status(ctx); err != nil {
		return err
	}
	if c.encryption, err = client.Encrypt(ctx); err != nil {
		return err
	}
	if c.nodes, err = client.Nodes(ctx); err != nil {
		return err
	}
	c.endpoints, err = client.Endpoints(ctx)
	return err
}

// options makes the plan of what is sent and looked for, and notes it in the result.
func (c *verifyCall) options(result *verification) (encryptcheck.Options, error) {
	var none encryptcheck.Options
	if len(c.interfaces) > 0 {
		result.Interfaces = c.interfaces
	}
	if len(result.Interfaces) == 0 {
		return none, errors.New("the agent names no uplinks yet: name the interfaces with --interface")
	}
	peer, err := c.destination(result)
	if err != nil {
		return none, err
	}
	probes, err := c.probes(result)
	if err != nil {
		return none, err
	}
	rules := encryptcheck.Rules{Port: uint16(c.encryption.Port), Allowed: c.encryption.Plain}
	for _, n := range c.nodes {
		rules.Pods, rules.Nodes = append(rules.Pods, n.PodCIDRs...), append(rules.Nodes,
			n.Addresses...)
	}
	return encryptcheck.Options{
		NetNS: c.status.Paths.NetNS, Interfaces: result.Interfaces, XDPPrograms: c.xdpPrograms(),
		Rules: rules, Probes: probes, Peer: peer.Addresses, Duration: c.duration,
	}, nil
}

// xdpPrograms are those whose frames packet sockets do not see.
func (c *verifyCall) xdpPrograms() []encryptcheck.XDPProgram {
	uplink := map[uint32]bool{}
	for _, l := range c.status.Links {
		if strings.HasPrefix(string(l.Kind), "xdp") {
			uplink[l.ProgramID] = uplink[l.ProgramID] || l.Hook == "from_wire"
		}
	}
	var programs []encryptcheck.XDPProgram
	for _, id := range slices.Sorted(maps.Keys(uplink)) {
		programs = append(programs, encryptcheck.XDPProgram{ID: id, Uplink: uplink[id]})
	}
	return programs
}

// destination finds whom to send to, and the node that has it.
func (c *verifyCall) destination(result *verification) (*admin.Node, error) {
	result.To = c.to
	if addr, err := netip.ParseAddr(c.to); err == nil {
		result.Addresses = []netip.Addr{addr.Unmap()}
	} else if err := c.remotePod(result); err != nil {
		return nil, err
	}
	node := c.nodeOf(result.Addresses[0])
	switch {
	case node == nil:
		return nil, cmdutil.UsageError("--to: %s is no address of a known node or its pods: nothing seals packets to it", result.Addresses[0])
	case node.Self:
		return nil, cmdutil.UsageError("--to: %s is on this node: packets to it cross no wire",
			result.To)
	}
	result.Peer = node.Name
	return node, nil
}

// nodeOf is the node that has an address, for itself or its pods.
func (c *verifyCall) nodeOf(addr netip.Addr) *admin.Node {
	for i, n := range c.nodes {
		if slices.Contains(n.Addresses, addr) ||
			slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return &c.nodes[i]
		}
	}
	return nil
}

// remotePod looks the pod up among the endpoints that other nodes have published.
func (c *verifyCall) remotePod(result *verification) error {
	objects, err := agent.OpenStore(c.status.Store.Store, "", nil)
	if err != nil {
		return err
	}
	snapshot, err := objects.Snapshot()
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(snapshot.Endpoints)) {
		e := snapshot.Endpoints[key]
		if len(e.Spec.Addresses) == 0 || c.to == "" &&
			(e.Spec.NodeName == c.status.Node || c.plain(e.Spec.Addresses)) {
			continue
		}
		if c.to == "" || key == c.to || hasPodName(key, c.to) {
			result.To, result.Addresses = key, e.Spec.Addresses
			return nil
		}
	}
	if c.to == "" {
		return errors.New("no other node has published a pod yet: name an address of another node with --to")
	}
	return cmdutil.UsageError("--to: %q is no address and no published pod", c.to)
}

// plain says whether a policy lets any of the addresses travel in cleartext: that would prove
// nothing.
func (c *verifyCall) plain(addrs []netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool {
		return slices.ContainsFunc(c.encryption.Plain,
			func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// sendsSealed says that no policy lets the endpoint's packets travel in cleartext.
func (c *verifyCall) sendsSealed(e admin.Endpoint) bool {
	return e.Network == 0 && !c.plain([]netip.Addr{e.IPv4, e.IPv6})
}

// probes finds who sends: a probe for each family of the destination that the sender has.
func (c *verifyCall) probes(result *verification) ([]encryptcheck.Probe, error) {
	if c.from == "" && !slices.ContainsFunc(c.endpoints, c.sendsSealed) {
		c.from = hostName
	}
	result.From = hostName
	ns, own := c.status.Paths.NetNS, c.status.Addresses
	if c.from != hostName {
		at := slices.IndexFunc(c.endpoints, func(e admin.Endpoint) bool {
			return c.from == "" && c.sendsSealed(e) || c.from == e.ID || e.Name() == c.from ||
				hasPodName(e.Name(), c.from)
		})
		if at < 0 {
			return nil, cmdutil.UsageError("--from: no pod %q runs on node %s; use %q for the node itself", c.from, c.status.Node, hostName)
		}
		e := c.endpoints[at]
		result.From, ns, own = e.Name(), e.NetNS, []netip.Addr{e.IPv4, e.IPv6}
	}
	var probes []encryptcheck.Probe
	for _, dst := range result.Addresses {
		if slices.ContainsFunc(own,
			func(a netip.Addr) bool { return a.IsValid() && a.Is4() == dst.Is4() }) {
			probes = append(probes, encryptcheck.Probe{NetNS: ns, Dst: dst})
		}
	}
	if len(probes) == 0 {
		return nil, cmdutil.UsageError("%s and %s have no family of addresses in common",
			result.From, result.To)
	}
	return probes, nil
}

func writeVerification(w io.Writer, v *verification, wide bool) error {
	rows := output.Rows{Header: []string{"Sent:",
		fmt.Sprintf("%d marked packets from %s to %s: %d UDP, %d TCP, %d ICMP",
			v.Sent.Total(), v.From, v.To, v.Sent.UDP, v.Sent.TCP, v.Sent.ICMP)}}
	if v.Sent.Refused > 0 {
		rows.Add("Refused:",
			fmt.Sprintf("%d by the sender's own stack: %s", v.Sent.Refused, v.Sent.Error))
	}
	rows.Add("Captured:",
		fmt.Sprintf("%d frames on %s in %.1f s, %d lost", v.Capture.Frames,
			strings.Join(v.Interfaces, ", "), v.Seconds, v.Lost))
	rows.Add("Sealed:",
		fmt.Sprintf("%d packets, %d of them to node %s", v.Capture.Sealed, v.SealedToPeer, v.Peer))
	rows.Add("Readable:",
		fmt.Sprintf("%d markers, %d packets that must be sealed", v.Capture.Markers,
			v.Capture.Plain))
	rows.Add("Plain, as it may:",
		fmt.Sprintf("%d by policy, %d of pods and the outside, %d of nodes", v.Capture.Allowed,
			v.Capture.Outside, v.Capture.Other))
	if v.Unseen != "" {
		rows.Add("Not seen:", v.Unseen)
	}
	rows.Add("Verdict:", v.Verdict+": "+v.Why)
	if err := rows.Write(w, true); err != nil || len(v.Capture.Finds) == 0 {
		return err
	}
	fmt.Fprintln(w)
	finds := output.Rows{Header: []string{"READABLE", "INTERFACE", "FROM", "TO", "PROTOCOL",
		"BYTES"}}
	for _, f := range v.Capture.Finds {
		finds.Add(f.What, cmp.Or(f.Interface, "-"), text(f.Src), text(f.Dst),
			cmp.Or(f.Protocol, "-"), fmt.Sprint(f.Length))
	}
	return finds.Write(w, wide)
}
