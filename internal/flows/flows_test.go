package flows

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/logfile"
	"weft.dev/weft/internal/policy"
)

type names map[netip.Addr]Identity

func (n names) ByIP(_ uint32, addr netip.Addr) (Identity, bool) { id, ok := n[addr]; return id, ok }

func (n names) BySlot(slot uint16) (Identity, bool) {
	if slot == 7 {
		return Identity{Namespace: "demo", Pod: "web", Labels: map[string]string{"app": "web"}},
			true
	}
	return Identity{}, false
}

var resolver = names{
	netip.MustParseAddr("10.0.0.2"):  {Namespace: "demo", Pod: "web"},
	netip.MustParseAddr("10.0.1.2"):  {Namespace: "demo", Pod: "db", Node: "b"},
	netip.MustParseAddr("192.0.2.1"): {Node: "a"},
}

func event(direction, src, dst string) datapath.FlowEvent {
	return datapath.FlowEvent{
		Type: datapath.EventNew, Verdict: "forward", Slot: 7, Direction: direction,
		Hook: "from_pod",
		Src:  netip.MustParseAddrPort(src), Dst: netip.MustParseAddrPort(dst), Protocol: 6,
		TCPFlags: 0x12,
	}
}

func TestEnrich(t *testing.T) {
	enricher := Enricher{Node: "a", Resolver: resolver,
		ReasonText: func(label string) string { return "text of " + label }}
	flow := enricher.Flow(event("egress", "10.0.0.2:4000", "10.0.1.2:80"))
	if flow.Source.Name() != "demo/web" || flow.Destination.Name() != "demo/db" ||
		flow.TCPFlags != "SYN,ACK" ||
		flow.Verdict != Forwarded || flow.IsReply == nil || flow.Direction != "EGRESS" {
		t.Errorf("flow %+v", flow)
	}
	if !strings.Contains(flow.String(), "demo/web:4000 -> demo/db:80 [SYN,ACK]") {
		t.Errorf("text %q", flow)
	}

	spoofed := event("egress", "10.0.1.2:1", "192.0.2.1:53")
	spoofed.Type, spoofed.Verdict, spoofed.Reason, spoofed.Protocol = datapath.EventDrop, "drop", "spoofed_ip", 17
	flow = enricher.Flow(spoofed)
	if flow.Source.Name() != "demo/web" || flow.Source.IP.String() != "10.0.1.2" {
		t.Errorf("a spoofed source must be named by its slot: %+v", flow.Source)
	}
	if flow.Verdict != Dropped || flow.DropText != "text of spoofed_ip" || flow.IsReply != nil ||
		flow.TCPFlags != "" {
		t.Errorf("drop %+v", flow)
	}
	if flow.Destination.String() != "a:53" {
		t.Errorf("node's own address %q", flow.Destination)
	}

	in := enricher.Flow(event("ingress", "198.51.100.9:1", "10.0.0.2:80"))
	if in.Destination.Labels["app"] != "web" || in.Source.Name() != "" ||
		in.Source.String() != "198.51.100.9:1" {
		t.Errorf("ingress %+v", in)
	}
	ended := event("egress", "10.0.0.2:0", "10.0.1.2:99")
	ended.Type, ended.Protocol, ended.Forward = datapath.EventEnd, 1, datapath.Traffic{Packets: 3,
		Bytes: 300}
	end := enricher.Flow(ended)
	if end.Forward == nil || end.Forward.Packets != 3 || end.Destination.Port != 0 ||
		!strings.Contains(end.String(), "sent 3 packets") {
		t.Errorf("end %+v", end)
	}
}

// TestRefusal: what a policy refused is told in its words, and in fields of the same names for
// ever.
func TestRefusal(t *testing.T) {
	half := &policy.Half{
		Direction: policy.Ingress, Pod: "demo/web", Peer: "front/default",
		Policies: []string{"NetworkPolicy demo/deny"},
		Why:      "isolated by NetworkPolicy demo/deny: no rule of ingress allows it",
	}
	enricher := Enricher{Node: "a", Resolver: resolver,
		ReasonText: func(string) string { return "no policy allows it" }}
	enricher.Refusal = func(e datapath.FlowEvent) *Refusal {
		if e.Reason != "policy_denied" {
			return nil
		}
		return RefusalOf(half)
	}
	dropped := event("ingress", "10.0.1.2:4000", "10.0.0.2:80")
	dropped.Type, dropped.Verdict, dropped.Reason = datapath.EventDrop, "drop", "policy_denied"
	flow := enricher.Flow(dropped)
	const text = "ingress of demo/web from front/default: isolated by NetworkPolicy demo/deny: no rule of ingress allows it"
	if line := flow.String(); !strings.HasSuffix(line, "policy_denied: "+text) {
		t.Errorf("line %q", line)
	}
	got, err := json.Marshal(flow.Policy)
	want := `{"direction":"INGRESS","pod":"demo/web","peer":"front/default","policies":["NetworkPolicy demo/deny"],"text":"` + text + `"}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
	dropped.Reason = "spoofed_ip"
	if flow := enricher.Flow(dropped); flow.Policy != nil ||
		!strings.HasSuffix(flow.String(), ": no policy allows it") {
		t.Errorf("another reason: %s", flow)
	}
	if enricher.Flow(event("ingress", "10.0.1.2:4000", "10.0.0.2:80")).Policy != nil {
		t.Error("a packet that passed has a refusal")
	}
}

func TestFilter(t *testing.T) {
	enricher := Enricher{Node: "a", Resolver: resolver}
	flow := enricher.Flow(event("egress", "10.0.0.2:4000", "10.0.1.2:80"))
	dropEvent := event("egress", "10.0.0.2:4000", "[2001:db8::1]:80")
	dropEvent.Type, dropEvent.Reason = datapath.EventDrop, "no_route"
	drop := enricher.Flow(dropEvent)
	for _, test := range []struct {
		name       string
		filter     Filter
		flow, drop bool
	}{
		{"all", Filter{}, true, true},
		{"pod", Filter{From: []string{"demo/web"}}, true, true},
		{"bare name", Filter{To: []string{"db"}}, true, false},
		{"namespace", Filter{To: []string{"demo/"}}, true, false},
		{"other namespace", Filter{From: []string{"prod/"}}, false, false},
		{"address", Filter{To: []string{"10.0.1.2"}}, true, false},
		{"cidr", Filter{To: []string{"2001:db8::/32"}}, false, true},
		{"alternatives", Filter{To: []string{"demo/db", "2001:db8::1"}}, true, true},
		{"verdict", Filter{Verdict: "dropped"}, false, true},
		{"verdict in capitals", Filter{Verdict: "FORWARDED"}, true, false},
		{"reason", Filter{Reason: "NO_ROUTE"}, false, true},
		{"protocol", Filter{Protocol: "udp"}, false, false},
		{"protocol number", Filter{Protocol: "6"}, true, true},
		{"together", Filter{From: []string{"web"}, Verdict: "drop", Protocol: "tcp"}, false, true},
	} {
		matcher, err := test.filter.Compile()
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if matcher.Match(flow) != test.flow || matcher.Match(drop) != test.drop {
			t.Errorf("%s: flow %v drop %v", test.name, matcher.Match(flow), matcher.Match(drop))
		}
	}
}

func TestFilterRefuses(t *testing.T) {
	for want, filter := range map[string]Filter{
		"from: \"a b\" is no address":    {From: []string{"a b"}},
		"to: \"/web\" is no":             {To: []string{"/web"}},
		"to: \"10.0.0.0/40\"":            {To: []string{"10.0.0.0/40:1"}},
		"verdict: unknown verdict \"x\"": {Verdict: "x"},
		"protocol: unknown protocol":     {Protocol: "256"},
	} {
		_, err := filter.Compile()
		if want == "to: \"10.0.0.0/40\"" {
			want = "is no address, CIDR"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func numbered(n uint16) Flow { return Flow{Source: Peer{Port: n}} }

func ports(flows []Flow) []int {
	var all []int
	for _, flow := range flows {
		all = append(all, int(flow.Source.Port))
	}
	return all
}

func TestRing(t *testing.T) {
	hub := NewHub(5)
	for n := uint16(1); n <= 13; n++ {
		hub.Publish(numbered(n))
		kept := hub.Last(0, nil)
		if first, last := kept[0].Source.Port, kept[len(kept)-1].Source.Port; last != n ||
			int(last-first)+1 != min(int(n), 5) {
			t.Fatalf("after %d: %v", n, ports(kept))
		}
	}
	if got := ports(hub.Last(2, nil)); len(got) != 2 || got[0] != 12 || got[1] != 13 {
		t.Errorf("last two %v", got)
	}
	none, _ := Filter{Verdict: "dropped"}.Compile()
	if got := hub.Last(0, none); len(got) != 0 {
		t.Errorf("selected %v", got)
	}
}

func TestSlowFollowerLosesWithACount(t *testing.T) {
	hub := NewHub(10)
	hub.Publish(numbered(1))
	past, follower := hub.Follow(0, nil, 2)
	if len(past) != 1 {
		t.Fatalf("past %v", past)
	}
	for n := uint16(2); n <= 6; n++ {
		hub.Publish(numbered(n))
	}
	if first := <-follower.C(); first.Source.Port != 2 || first.Lost != 0 {
		t.Errorf("first %+v", first)
	}
	<-follower.C()
	hub.Publish(numbered(7))
	if after := <-follower.C(); after.Source.Port != 7 || after.Lost != 3 {
		t.Errorf("after the loss %+v", after)
	}
	if stats := hub.Stats(); stats.Lost != 3 || stats.Followers != 1 {
		t.Errorf("stats %+v", stats)
	}
	follower.Close()
	follower.Close()
	if stats := hub.Stats(); stats.Followers != 0 {
		t.Errorf("stats %+v", stats)
	}
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log", "flows.jsonl")
	hub := NewHub(0)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- WriteFile(ctx, hub, path, slog.New(slog.DiscardHandler)) }()
	for hub.Stats().Followers == 0 {
		time.Sleep(time.Millisecond)
	}
	hub.Publish(numbered(1))
	hub.Publish(numbered(2))
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if info, _ := file.Stat(); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	lines := 0
	for scanner := bufio.NewScanner(file); scanner.Scan(); lines++ {
		var flow Flow
		if err := json.Unmarshal(scanner.Bytes(), &flow); err != nil {
			t.Error(err)
		}
	}
	if lines != 2 {
		t.Errorf("%d lines", lines)
	}
}

func TestFileRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.jsonl")
	writer := &fileWriter{file: logfile.File{Path: path, MaxSize: 600, Keep: 1}}
	defer writer.file.Close()
	for n := uint16(0); n < 4; n++ {
		if err := errors.Join(writer.write(numbered(n)), writer.flush()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{path, path + ".1"} {
		if info, err := os.Stat(name); err != nil || info.Size() > 1200 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
}
