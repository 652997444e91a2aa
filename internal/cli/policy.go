package cli

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/cli/output"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/policy"
)

func newPolicy(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "policy",
		Short:   "Check network policies",
		Example: "  weft policy check policies.yaml pods.yaml",
	}
	cmd.AddCommand(newPolicyCheck(a))
	return cmd
}

// policyReport is what `policy check` prints.
type policyReport struct {
	Problems []policy.Problem `json:"problems"`
	// Pods are the pods in the files and the policies about them, Idle the policies about none.
	Pods   []policy.PodPolicies `json:"pods"`
	Idle   []string             `json:"idle,omitempty"`
	Packet *policyPacket        `json:"packet,omitempty"`
}

// policyPacket is the packet that was asked for.
type policyPacket struct {
	From string `json:"from"`
	To   string `json:"to"`
	policy.Answer
}

func newPolicyCheck(a *app) *cobra.Command {
	var from, to string
	defaults := config.Default()
	names := policy.Names{TrustDomain: defaults.Keys.TrustDomain, RootNamespace: defaults.Policy.Istio.RootNamespace}
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check policies in files, and say what they would do, without an agent",
		Long: `Read NetworkPolicies, ClusterNetworkPolicies, Istio's AuthorizationPolicies, pods and namespaces
from files of YAML, in the formats in which kubectl prints them or in Weft's. "-" is standard input. Name everything that is wrong, with line and field,
and list which pods each policy is about.

With --from and --to it says whether a packet would be allowed, and which rule decides. Pods are in
the files; an address is somebody's outside the cluster.

The exit code is 0 when all is well, 7 when something is wrong with an object, and 8 when the packet
would be denied.`,
		Example: "  weft policy check policies.yaml\n" +
			"  weft policy check policies.yaml pods.yaml --from shop/web --to shop/db:5432/tcp\n" +
			"  kubectl get ns,pods,netpol -A -o yaml | weft policy check - --from 192.0.2.7 --to shop/web:http/tcp",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (from == "") != (to == "") {
				return cmdutil.UsageError("--from and --to go together: give both, or none")
			}
			return a.checkPolicies(cmd.InOrStdin(), args, names, from, to)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "who sends: NAMESPACE/POD, or an address outside the cluster")
	cmd.Flags().StringVar(&to, "to", "", "where to: NAMESPACE/POD:PORT/PROTOCOL or ADDRESS:PORT/PROTOCOL, "+
		"without :PORT for icmp; an IPv6 address with a port in brackets")
	cmd.Flags().StringVar(&names.TrustDomain, "trust-domain", names.TrustDomain, "the agents' keys.trustDomain, for principals")
	cmd.Flags().StringVar(&names.RootNamespace, "root-namespace", names.RootNamespace,
		"the agents' policy.istio.rootNamespace, whose AuthorizationPolicies are about all namespaces")
	return cmd
}

func (a *app) checkPolicies(stdin io.Reader, files []string, names policy.Names, from, to string) error {
	objects, problems, err := readPolicies(stdin, files)
	if err != nil {
		return err
	}
	s := policy.Simulate(objects, identity.LabelFilter{}, names)
	report := policyReport{Problems: append(problems, s.Result.Problems...), Pods: s.Pods(), Idle: s.Idle()}
	if from != "" {
		if report.Packet, err = askPolicy(s, objects, from, to); err != nil {
			return err
		}
	}
	if err := a.Print(report, func(w io.Writer, _ bool) error { return writePolicies(w, report) }); err != nil {
		return err
	}
	for _, p := range report.Problems {
		if !p.Warning {
			return &cmdutil.ExitError{Code: exitWrongObject}
		}
	}
	if report.Packet != nil && report.Packet.Verdict == policy.Deny {
		return &cmdutil.ExitError{Code: exitDenied}
	}
	return nil
}

// readPolicies reads all files together.
func readPolicies(stdin io.Reader, files []string) (*policy.Objects, []policy.Problem, error) {
	all := &policy.Objects{Namespaces: map[string]map[string]string{}}
	var problems []policy.Problem
	for _, name := range files {
		data, err := readLimited(stdin, name)
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", name, err)
		}
		o, errs := policy.Decode(name, data)
		problems = append(problems, errs...)
		problems = append(problems, all.Add(o)...)
	}
	return all, problems, nil
}

func readLimited(stdin io.Reader, name string) ([]byte, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, errors.Unwrap(err)
		}
		defer file.Close()
		in = file
	}
	return io.ReadAll(io.LimitReader(in, policy.MaxSize+1))
}

// askPolicy asks for the packet of --from and --to.
func askPolicy(s *policy.Simulation, o *policy.Objects, from, to string) (*policyPacket, error) {
	name, port, protocol, err := parsePolicyTarget(o, to)
	if err != nil {
		return nil, cmdutil.UsageError("--to: %w", err)
	}
	answer, err := s.Ask(from, name, protocol, port)
	if err != nil {
		return nil, cmdutil.UsageError("--from, --to: %w", err)
	}
	return &policyPacket{From: from, To: to, Answer: answer}, nil
}

// parsePolicyTarget reads NAMESPACE/POD:PORT/PROTOCOL or ADDRESS:PORT/PROTOCOL, where the port of a
// pod may be a name.
func parsePolicyTarget(o *policy.Objects, target string) (name string, port uint16, protocol uint8, err error) {
	const form = "use NAMESPACE/POD:PORT/PROTOCOL such as shop/db:5432/tcp, or ADDRESS:PORT/PROTOCOL such as [fd10::2]:53/udp"
	slash := strings.LastIndexByte(target, '/')
	if slash < 0 {
		return "", 0, 0, fmt.Errorf("%q names no protocol: %s", target, form)
	}
	number, err := flows.ParseProtocol(strings.ToLower(target[slash+1:]))
	if err != nil {
		return "", 0, 0, err
	}
	protocol, where := number, target[:slash]
	ports := protocol == policy.TCP || protocol == policy.UDP || protocol == policy.SCTP
	if a, err := netip.ParseAddr(where); err == nil && !ports {
		return a.String(), 0, protocol, nil
	}
	colon := strings.LastIndexByte(where, ':')
	switch {
	case !ports && colon < 0:
		return where, 0, protocol, nil
	case !ports:
		return "", 0, 0, fmt.Errorf("%q has a port, and %s has none: %s", target, target[slash+1:], form)
	case colon < 0:
		return "", 0, 0, fmt.Errorf("%q names no port: %s", target, form)
	}
	name = strings.Trim(where[:colon], "[]")
	if n, err := strconv.ParseUint(where[colon+1:], 10, 16); err == nil {
		return name, uint16(n), protocol, nil
	}
	if n, ok := o.PortOf(name, where[colon+1:], protocol); ok {
		return name, n, protocol, nil
	}
	return "", 0, 0, fmt.Errorf("%s has no port %q: %s", name, where[colon+1:], form)
}

func writePolicies(w io.Writer, report policyReport) error {
	for _, p := range report.Problems {
		fmt.Fprintln(w, p.Error())
	}
	if len(report.Problems) > 0 && len(report.Pods) > 0 {
		fmt.Fprintln(w)
	}
	rows := &output.Rows{Header: []string{"POD", "INGRESS", "EGRESS"}, Empty: "no pods in these files"}
	for _, p := range report.Pods {
		in, out := policyNames(p.Ingress), policyNames(p.Egress)
		if p.HostNetwork {
			in, out = "host network: no policy", "host network: no policy"
		}
		rows.Add(p.Pod, in, out)
	}
	if err := rows.Write(w, false); err != nil {
		return err
	}
	for _, name := range report.Idle {
		fmt.Fprintf(w, "%s is about no pod in these files\n", name)
	}
	if report.Packet != nil {
		return writeAnswer(w, report.Packet)
	}
	return nil
}

func policyNames(names []string) string {
	if names == nil {
		return "all allowed"
	}
	return strings.ReplaceAll(strings.Join(names, ", "), policy.KindNetworkPolicy+" ", "")
}

func writeAnswer(w io.Writer, p *policyPacket) error {
	fmt.Fprintf(w, "\n%s → %s: %s\n", p.From, p.To, p.Verdict)
	for _, h := range []struct {
		name string
		half *policy.Half
	}{{"egress", p.Egress}, {"ingress", p.Ingress}} {
		if h.half == nil {
			continue
		}
		if _, err := fmt.Fprintf(w, "  %-8s %-6s %s\n", h.name, h.half.Verdict, h.half.Why); err != nil {
			return err
		}
	}
	return nil
}
