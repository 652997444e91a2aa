package cli

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/policy"
)

func newPolicyList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the policies that this node knows, and which of its pods they are about",
		Long: `List the policies that this node knows: the directions in which they isolate, how many rules they have,
which of this node's pods they select, and what is wrong with them. Below are the node's pods: the
policies about them, and how many packets policies have refused at their interfaces since they were
attached. There is no count for each policy.`,
		Example: "  weft policy list\n  weft policy list -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd.Context(), a, (*admin.Client).Policies, writePolicyList, nil)
		},
	}
}

func writePolicyList(w io.Writer, p *admin.Policies, wide bool) error {
	rows := output.Rows{
		Header: []string{"KIND", "POLICY", "ISOLATES", "RULES", "STATE", "PODS OF " + p.Node,
			"DECLARED"},
		WideFrom: 6, Empty: "no policies: everybody may talk to everybody",
	}
	for _, s := range p.Policies {
		rows.Add(s.Kind, s.Namespace+"/"+s.Name, orNone(s.Directions), fmt.Sprint(len(s.Rules)),
			policyState(s), orNone(s.Pods), declaredAt(s))
	}
	if err := rows.Write(w, wide); err != nil {
		return err
	}
	for _, s := range p.Policies {
		for _, problem := range s.Problems {
			fmt.Fprintln(w, problem.Error())
		}
	}
	for _, text := range p.Problems {
		fmt.Fprintln(w, text)
	}
	fmt.Fprintln(w)
	pods := output.Rows{Header: []string{"POD", "INGRESS", "EGRESS", "DENIED"},
		Empty: "no pods on this node"}
	for _, pod := range p.Pods {
		pods.Add(pod.Pod, policyNames(pod.Ingress), policyNames(pod.Egress), fmt.Sprint(pod.Denied))
	}
	return pods.Write(w, true)
}

// declaredAt is where a policy is written; an object of etcd has no file.
func declaredAt(s policy.Summary) string {
	if s.File == "" || s.Line == 0 {
		return orNone([]string{s.File})
	}
	return fmt.Sprintf("%s:%d", s.File, s.Line)
}

func policyState(s policy.Summary) string {
	switch {
	case s.Denies:
		return "denies all"
	case len(s.Problems) > 0:
		return "in force, warnings"
	}
	return "in force"
}

func orNone(list []string) string {
	if strings.Join(list, "") == "" {
		return "-"
	}
	return strings.Join(list, ", ")
}

func newPolicyGet(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "get [KIND/]NAMESPACE/NAME",
		Short: "Show what a policy was compiled to",
		Long: `Show what became of a policy on this node: its rules with where they are written, the pods of this node
that it selects, and the entries of their policy sets, with what other policies add to these.
"weft get" shows the object as it is written.`,
		Example: "  weft policy get shop/db\n  weft policy get NetworkPolicy/shop/db -o json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, key, err := parsePolicyName(args[0])
			if err != nil {
				return err
			}
			fetch := func(client *admin.Client, ctx context.Context) (*admin.PolicyDetail, error) {
				return client.Policy(ctx, kind, key)
			}
			return show(cmd.Context(), a, fetch, writePolicyDetail, nil)
		},
		ValidArgsFunction: a.completePolicies,
	}
}

// parsePolicyName reads KIND/NAMESPACE/NAME or NAMESPACE/NAME.
func parsePolicyName(text string) (kind, key string, err error) {
	parts := strings.Split(text, "/")
	if n := len(parts); n == 3 {
		return parts[0], parts[1] + "/" + parts[2], nil
	} else if n == 2 {
		return "", text, nil
	}
	return "", "", cmdutil.UsageError("%q is no policy: give NAMESPACE/NAME or KIND/NAMESPACE/NAME, such as NetworkPolicy/shop/db", text)
}

func (a *app) completePolicies(cmd *cobra.Command, args []string,
	_ string) ([]string, cobra.ShellCompDirective) {
	client, err := a.client()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	list, err := client.Policies(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, s := range list.Policies {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func writePolicyDetail(w io.Writer, d *admin.PolicyDetail, wide bool) error {
	fmt.Fprintf(w, "%s: %s\n", d.Object(), policyState(d.Summary))
	fmt.Fprintf(w, "Declared:  %s\n", declaredAt(d.Summary))
	fmt.Fprintf(w, "Isolates:  %s\nPods here: %s\n", orNone(d.Directions), orNone(d.Pods))
	for _, problem := range d.Problems {
		fmt.Fprintf(w, "Problem:   %s\n", problem.Error())
	}
	for _, rule := range d.Rules {
		fmt.Fprintf(w, "Rule:      %s\n", rule)
	}
	for _, set := range d.Sets {
		fmt.Fprintf(w, "\nSet %d, %s of %s:\n", set.Kernel, set.Direction, orNone(set.Pods))
		rows := output.Rows{Header: []string{"VERDICT", "PEER", "PORTS", "RULE", "PRECEDENCE"},
			WideFrom: 4, Empty: "no entries: all is denied"}
		for _, e := range set.Entries {
			rows.Add(e.Verdict.String(), peerWithRanges(e), e.Ports, ruleText(e.Rule),
				fmt.Sprint(e.Precedence))
		}
		if err := rows.Write(w, wide); err != nil {
			return err
		}
	}
	return nil
}

func ruleText(r *policy.Rule) string {
	if r == nil {
		return "-"
	}
	return r.String()
}

func peerWithRanges(e policy.EntryView) string {
	if len(e.Ranges) == 0 {
		return e.Peer
	}
	const enough = 4
	text := joinPrefixes(e.Ranges[:min(enough, len(e.Ranges))])
	if more := len(e.Ranges) - enough; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func joinPrefixes(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}
