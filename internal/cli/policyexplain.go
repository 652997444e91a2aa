package cli

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/policy"
)

func newPolicyExplain(a *app) *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Say what the policies in force say of a packet, and which rule decides",
		Long: `Ask the agent what the policies that it enforces say of the first packet of a conversation, at each
end that is a pod of its node: the verdict, the rule that decides, and what would have to change to
allow it. The same is looked up in the maps that the datapath reads, and the two are compared.

An end is a pod of any node or an address. A pod of another node is judged there too, by what that
node enforces: ask there as well.

The exit code is 0 when the packet is allowed as far as this node judges it, 8 when it is denied, and
9 when what the agent has compiled and what is in the maps differ. That is a bug, or a problem that
"weft status" names.`,
		Example: "  weft policy explain --from shop/web --to shop/db:5432/tcp\n" +
			"  weft policy explain --from 192.0.2.7 --to shop/web:http/tcp\n  weft policy explain --from shop/web --to '[fd10::2]:53/udp' -o json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			target, err := parsePolicyTarget(to)
			if err != nil {
				return cmdutil.UsageError("--to: %w", err)
			}
			client, err := a.client()
			if err != nil {
				return err
			}
			result, err := client.ExplainPolicy(cmd.Context(), admin.PolicyRequest{
				From: from, To: target.name, Protocol: strconv.Itoa(int(target.protocol)),
				Port: target.port,
			})
			if err != nil {
				return err
			}
			result.To = to
			if err := a.Print(result,
				func(w io.Writer,
					_ bool) error {
					return writeExplanation(w, result)
				}); err != nil {
				return err
			}
			switch {
			case len(result.Disagreements) > 0:
				return &cmdutil.ExitError{Code: exitDisagree}
			case result.Verdict == policy.Deny:
				return &cmdutil.ExitError{Code: exitDenied}
			}
			return nil
		},
	}
	packetFlags(cmd, &from, &to, "who sends: NAMESPACE/POD or an address")
	_ = cmd.MarkFlagRequired("from")
	_ = cmd.MarkFlagRequired("to")
	_ = cmd.RegisterFlagCompletionFunc("from", a.completePods)
	return cmd
}

// packetFlags are those that say which packet is meant.
func packetFlags(cmd *cobra.Command, from, to *string, who string) {
	cmd.Flags().StringVar(from, "from", "", who)
	cmd.Flags().StringVar(to, "to", "",
		"where to: NAMESPACE/POD:PORT/PROTOCOL or ADDRESS:PORT/PROTOCOL, "+
			"without :PORT for icmp; an IPv6 address with a port in brackets")
}

func writeExplanation(w io.Writer, e *admin.PolicyExplanation) error {
	if err := writeAnswer(w, policyPacket{From: e.From, To: e.To, Answer: e.Answer}); err != nil {
		return err
	}
	for _, text := range e.Elsewhere {
		fmt.Fprintf(w, "  %s\n", text)
	}
	if len(e.Disagreements) == 0 {
		_, err := fmt.Fprintf(w, "\nthe maps of node %s say the same\n", e.Node)
		return err
	}
	fmt.Fprintf(w,
		"\nthe maps of node %s say something else, and they decide (`weft status` may name why; if not, report it):\n", e.Node)
	for _, text := range e.Disagreements {
		fmt.Fprintf(w, "  %s\n", text)
	}
	return nil
}

// policyTarget is where a packet goes.
type policyTarget struct {
	// name is a pod's or an address.
	name string
	// port is a number or the name of one, "" for protocols that have none.
	port     string
	protocol uint8
}

// parsePolicyTarget reads NAMESPACE/POD:PORT/PROTOCOL or ADDRESS:PORT/PROTOCOL, where the port of a
// pod may be a name.
func parsePolicyTarget(target string) (policyTarget, error) {
	const form = "use NAMESPACE/POD:PORT/PROTOCOL such as shop/db:5432/tcp, or ADDRESS:PORT/PROTOCOL such as [fd10::2]:53/udp"
	var none policyTarget
	slash := strings.LastIndexByte(target, '/')
	if slash < 0 {
		return none, fmt.Errorf("%q names no protocol: %s", target, form)
	}
	protocol, err := flows.ParseProtocol(strings.ToLower(target[slash+1:]))
	if err != nil {
		return none, err
	}
	where := target[:slash]
	ports := policy.HasPorts(protocol)
	if a, err := netip.ParseAddr(strings.Trim(where, "[]")); err == nil && !ports {
		return policyTarget{name: a.String(), protocol: protocol}, nil
	}
	colon := strings.LastIndexByte(where, ':')
	switch {
	case !ports && colon < 0:
		return policyTarget{name: where, protocol: protocol}, nil
	case !ports:
		return none, fmt.Errorf("%q has a port, and %s has none: %s", target, target[slash+1:],
			form)
	case colon < 0 || colon == len(where)-1:
		return none, fmt.Errorf("%q names no port: %s", target, form)
	}
	return policyTarget{name: strings.Trim(where[:colon], "[]"), port: where[colon+1:],
		protocol: protocol}, nil
}
