package agent

import (
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/policy"
)

// TestRefusal: an event is told by whose policies it was refused, and not told where that is not
// sure.
func TestRefusal(t *testing.T) {
	const syn, ack = 0x02, 0x10
	const isolated = "isolated by NetworkPolicy shop/db: no rule of ingress allows it"
	for _, tt := range []struct {
		name     string
		src, dst string
		slot     uint16
		egress   bool // the slot's direction
		flags    uint8
		protocol uint8
		rule     uint32
		reason   string
		// want is "" for no refusal.
		want string
	}{
		{name: "by the receiver's policy", src: "10.77.2.5:4000", dst: "10.77.1.2:5432", slot: 2,
			flags: syn,
			want:  "ingress of shop/db from front/default role=client: " + isolated},
		{name: "by the sender's", src: "10.77.1.1:4000", dst: "203.0.113.1:443", slot: 1,
			egress: true, flags: syn,
			want: "egress of shop/web to 203.0.113.1 (outside the cluster): isolated by NetworkPolicy shop/out"},
		{name: "by the receiver's, of a packet that the sender's hook has dropped",
			src: "10.77.1.1:4000", dst: "10.77.1.2:1", slot: 1, egress: true, flags: syn,
			want: "ingress of shop/db from shop/default app=web: " + isolated},
		{name: "an answer to what may not be any more", src: "10.77.1.2:80", dst: "10.77.2.5:4000",
			slot: 2, egress: true, flags: syn | ack,
			want: "ingress of shop/db from front/default role=client: " + isolated},
		{name: "a packet in the middle", src: "10.77.1.2:80", dst: "10.77.2.5:4000", slot: 2,
			egress: true, flags: ack,
			want: "ingress of shop/db from front/default role=client"},
		{name: "ICMP, whose ports are none", src: "10.77.2.5:8", dst: "10.77.1.2:8", slot: 2,
			protocol: 1,
			want:     "ingress of shop/db from front/default role=client: " + isolated},
		{name: "a forged source goes by its interface", src: "10.77.2.5:4000",
			dst: "203.0.113.1:443", slot: 1, egress: true, flags: syn,
			want: "egress of shop/web to 203.0.113.1"},
		{name: "what is allowed by now", src: "10.77.1.1:4000", dst: "10.77.1.2:5432", slot: 1,
			egress: true, flags: syn},
		{name: "a rule that nobody knows", src: "10.77.2.5:4000", dst: "10.77.1.2:5432", slot: 2,
			flags: syn, rule: 99},
		{name: "another reason", src: "10.77.2.5:4000", dst: "10.77.1.2:5432", slot: 2, flags: syn,
			reason: "spoofed_ip"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, _ := explaining(t, explainObjects)
			event := datapath.FlowEvent{
				Type: datapath.EventDrop, Reason: "policy_denied", Slot: tt.slot,
				Direction: "ingress", Protocol: policy.TCP,
				Src: netip.MustParseAddrPort(tt.src), Dst: netip.MustParseAddrPort(tt.dst),
				TCPFlags: tt.flags, Rule: tt.rule,
			}
			if tt.egress {
				event.Direction = "egress"
			}
			if tt.protocol != 0 {
				event.Protocol = tt.protocol
			}
			if tt.reason != "" {
				event.Reason = tt.reason
			}
			got := a.refusal(event)
			switch {
			case (got == nil) != (tt.want == ""):
				t.Errorf("%+v, want %q", got, tt.want)
			case got != nil && !strings.HasPrefix(got.Text, tt.want):
				t.Errorf("%s, want %s", got.Text, tt.want)
			}
		})
	}
}

// TestRefusalOfCleartext: an event of what is refused for not coming sealed names whose demand that
// is.
func TestRefusalOfCleartext(t *testing.T) {
	a, _ := explaining(t, explainObjects, strictDB)
	got := a.refusal(datapath.FlowEvent{
		Type: datapath.EventDrop, Reason: "policy_denied", Slot: 2, Direction: "ingress",
		Protocol: policy.TCP, TCPFlags: 2, Rule: a.ruleOf(t, "spec.mtls.mode"),
		Src: netip.MustParseAddrPort("10.77.2.5:4000"), Dst: netip.MustParseAddrPort("10.77.1.2:80"),
	})
	const want = "ingress of shop/db from front/default role=client: PeerAuthentication shop/db demands STRICT"
	if got == nil || !strings.HasPrefix(got.Text, want) {
		t.Errorf("%+v, want %s", got, want)
	}
}

// TestNameSteps: the steps of a trace name whose policy it is, and which.
func TestNameSteps(t *testing.T) {
	a, _ := explaining(t, explainObjects)
	web, _ := a.node.manager.Get("shop/web")
	steps := []datapath.TraceStep{
		{Step: "parse", Detail: "as it was"},
		{Step: "policy",
			Policy: &datapath.TracePolicy{Direction: "egress", Identity: 302, Allowed: true,
				Rule: a.ruleOf(t, "spec.egress[0]")}},
		{Step: "policy", Policy: &datapath.TracePolicy{Direction: "ingress", Identity: 301}},
	}
	(&backend{a}).nameSteps(a.node, web, netip.MustParseAddr("10.77.1.2"), steps)
	for i, want := range []string{
		"as it was",
		"allow: egress of shop/web to shop/default app=db: NetworkPolicy shop/out, spec.egress[0] (f0:",
		"deny: ingress of shop/db from shop/default app=web: isolated by NetworkPolicy shop/db: no rule of ingress allows it",
	} {
		if !strings.HasPrefix(steps[i].Detail, want) {
			t.Errorf("step %d: %q, want %q", i, steps[i].Detail, want)
		}
	}
}

// ruleOf is the number of a rule by its field.
func (a *Agent) ruleOf(t *testing.T, field string) uint32 {
	t.Helper()
	for number, rule := range a.node.policies.view.Load().Result.Rules {
		if rule.Field == field {
			return number
		}
	}
	t.Fatalf("no rule %s", field)
	return 0
}
