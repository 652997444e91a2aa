package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/policy"
)

func newPolicy(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, list and explain network policies",
		Example: "  weft policy check policies.yaml pods.yaml\n  weft policy list\n" +
			"  weft policy explain --from shop/web --to shop/db:5432/tcp",
	}
	cmd.AddCommand(newPolicyCheck(a), newPolicyList(a), newPolicyGet(a), newPolicyExplain(a))
	return cmd
}

// policyPacket is the packet that was asked for.
type policyPacket struct {
	From string `json:"from"`
	To   string `json:"to"`
	policy.Answer
}

// writeAnswer writes what policies say of a packet: those in files, or those in force.
func writeAnswer(w io.Writer, p policyPacket) error {
	fmt.Fprintf(w, "%s → %s: %s\n", p.From, p.To, p.Verdict)
	for _, h := range []struct {
		name string
		half *policy.Half
	}{{"egress", p.Egress}, {"ingress", p.Ingress}} {
		if h.half == nil {
			continue
		}
		if _, err := fmt.Fprintf(w, "  %-8s %-6s %s\n", h.name, h.half.Verdict,
			h.half.Why); err != nil {
			return err
		}
		if h.half.Remedy != "" {
			fmt.Fprintf(w, "  %-8s %-6s to allow it: %s\n", "", "", h.half.Remedy)
		}
	}
	return nil
}

// podRows are pods and the policies about them.
func podRows(pods []policy.PodPolicies, empty string) *output.Rows {
	rows := &output.Rows{Header: []string{"POD", "INGRESS", "EGRESS"}, Empty: empty}
	for _, p := range pods {
		in, out := policyNames(p.Ingress), policyNames(p.Egress)
		if p.HostNetwork {
			in, out = "host network: no policy", "host network: no policy"
		}
		rows.Add(p.Pod, in, out)
	}
	return rows
}

func policyNames(names []string) string {
	if names == nil {
		return "all allowed"
	}
	short := make([]string, len(names))
	for i, name := range names {
		short[i] = strings.TrimPrefix(name, policy.KindNetworkPolicy+" ")
	}
	return strings.Join(short, ", ")
}
