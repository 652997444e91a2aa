package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/cli/cmdutil"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/identity"
	"weft.dev/weft/internal/policy"
)

// policyReport is what `policy check` prints.
type policyReport struct {
	Problems []policy.Problem `json:"problems"`
	// Pods are the pods in the files and the policies about them, Idle the policies about none.
	Pods   []policy.PodPolicies `json:"pods"`
	Idle   []string             `json:"idle,omitempty"`
	Packet *policyPacket        `json:"packet,omitempty"`
}

func newPolicyCheck(a *app) *cobra.Command {
	var from, to string
	var cleartext bool
	defaults := config.Default()
	names := policy.ClusterNames{TrustDomain: defaults.Keys.TrustDomain,
		RootNamespace: defaults.Policy.Istio.RootNamespace}
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check policies in files, and say what they would do, without an agent",
		Long: `Read NetworkPolicies, ClusterNetworkPolicies and AdminNetworkPolicies, Istio's
AuthorizationPolicies and PeerAuthentications, pods and namespaces from files of YAML, in the
formats in which kubectl prints them or in Weft's. "-" is standard input. Name everything that is
wrong, with line and field, and list which pods each policy is about.

With --from and --to it says whether a packet would be allowed, and which rule decides. Pods are in
the files; an address is somebody's outside the cluster. What pods send is taken to come sealed, or
from the same node; with --cleartext it comes in cleartext, as from a pod of another node that is
exempt from encryption.

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
			if cleartext && from == "" {
				return cmdutil.UsageError("--cleartext is about a packet: give --from and --to")
			}
			return a.checkPolicies(cmd.InOrStdin(), args, names,
				asked{from: from, to: to, cleartext: cleartext})
		},
	}
	packetFlags(cmd, &from, &to, "who sends: NAMESPACE/POD, or an address outside the cluster")
	cmd.Flags().BoolVar(&cleartext, "cleartext", false,
		"the packet comes in cleartext from another node, which STRICT of a PeerAuthentication refuses")
	cmd.Flags().StringVar(&names.TrustDomain, "trust-domain", names.TrustDomain,
		"the agents' keys.trustDomain, for principals")
	cmd.Flags().StringVar(&names.RootNamespace, "root-namespace", names.RootNamespace,
		"the agents' policy.istio.rootNamespace, whose AuthorizationPolicies and PeerAuthentications are about all namespaces")
	return cmd
}

// asked is a packet that is asked about, if from is not "".
type asked struct {
	from, to  string
	cleartext bool
}

func (a *app) checkPolicies(stdin io.Reader, files []string, names policy.ClusterNames,
	packet asked) error {
	objects, problems, err := readPolicies(stdin, files)
	if err != nil {
		return err
	}
	s := policy.Simulate(objects, identity.LabelFilter{}, names)
	report := policyReport{Problems: append(problems, s.Result.Problems...), Pods: s.Pods(),
		Idle: s.Idle()}
	if packet.from != "" {
		s.Cleartext = packet.cleartext
		if report.Packet, err = askPolicy(s, packet.from, packet.to); err != nil {
			return err
		}
	}
	if err := a.Print(report,
		func(w io.Writer, _ bool) error { return writeReport(w, report) }); err != nil {
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
func askPolicy(s *policy.Simulation, from, to string) (*policyPacket, error) {
	target, err := parsePolicyTarget(to)
	if err != nil {
		return nil, cmdutil.UsageError("--to: %w", err)
	}
	answer, err := s.Ask(from, target.name, target.protocol, target.port)
	if err != nil {
		return nil, cmdutil.UsageError("--from, --to: %w", err)
	}
	return &policyPacket{From: from, To: to, Answer: answer}, nil
}

func writeReport(w io.Writer, report policyReport) error {
	for _, p := range report.Problems {
		fmt.Fprintln(w, p.Error())
	}
	if len(report.Problems) > 0 && len(report.Pods) > 0 {
		fmt.Fprintln(w)
	}
	if err := podRows(report.Pods, "no pods in these files").Write(w, false); err != nil {
		return err
	}
	for _, name := range report.Idle {
		fmt.Fprintf(w, "%s is about no pod in these files\n", name)
	}
	if report.Packet != nil {
		fmt.Fprintln(w)
		return writeAnswer(w, *report.Packet)
	}
	return nil
}
