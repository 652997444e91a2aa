package cni

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types020 "github.com/containernetworking/cni/pkg/types/020"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/endpoint/endpointtest"
)

// TestEverySpecVersion runs the life of an interface in each version that the plugin claims.
func TestEverySpecVersion(t *testing.T) {
	if got := Versions.SupportedVersions(); !slices.Equal(got, testutils.AllSpecVersions[:]) {
		t.Fatalf("claims %v, the test utilities know %v", got, testutils.AllSpecVersions)
	}
	for _, ver := range testutils.AllSpecVersions {
		t.Run(ver, func(t *testing.T) {
			a := newAgent(t)
			netns, _ := endpointtest.NewPod(t)
			args := &skel.CmdArgs{
				ContainerID: "c1", Netns: netns, IfName: "eth0", StdinData: a.conf(ver, `"dns":{"nameservers":["10.0.0.53"]}`),
				Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=u-1;OTHER=x",
			}
			result, raw, err := testutils.CmdAddWithArgs(args, func() error { return cmdAdd(args) })
			if err != nil {
				t.Fatal(err)
			}
			checkResult(t, a, ver, result, netns)
			if info, ok := a.Get("shop/web"); !ok || info.PodUID != "u-1" {
				t.Errorf("endpoint %+v", info)
			}
			args.StdinData = a.conf(ver, `"prevResult":`+string(raw))
			if testutils.SpecVersionHasCHECK(ver) {
				if err := testutils.CmdCheckWithArgs(args, func() error { return cmdCheck(args) }); err != nil {
					t.Errorf("check: %v", err)
				}
			}
			if testutils.SpecVersionHasSTATUS(ver) {
				if err := testutils.CmdStatus(func() error { return cmdStatus(args) }); err != nil {
					t.Errorf("status: %v", err)
				}
			}
			for range 2 {
				if err := testutils.CmdDelWithArgs(args, func() error { return cmdDel(args) }); err != nil {
					t.Errorf("del: %v", err)
				}
			}
			a.nothingLeft()
		})
	}
}

func checkResult(t *testing.T, a *agent, ver string, result types.Result, netns string) {
	t.Helper()
	if result.Version() != ver && !(ver == "0.1.0" || ver == "0.3.0" || ver == "0.3.1") {
		t.Errorf("result has version %s", result.Version())
	}
	if old, ok := result.(*types020.Result); ok {
		if old.IP4 == nil || old.IP4.IP.String() != "10.78.0.1/32" || old.IP6 == nil || old.IP6.IP.String() != "fd78::1/128" {
			t.Errorf("got %+v", old)
		}
		return
	}
	res, err := current.GetResult(result)
	if err != nil {
		t.Fatal(err)
	}
	info := a.List()[0]
	if len(res.Interfaces) != 2 || res.Interfaces[0].Name != info.HostIf || res.Interfaces[0].Sandbox != "" ||
		res.Interfaces[1].Name != "eth0" || res.Interfaces[1].Sandbox != netns || res.Interfaces[1].Mac != info.MAC {
		t.Errorf("interfaces %+v %+v", res.Interfaces[0], res.Interfaces[1])
	}
	for i, want := range []struct{ addr, gw string }{{"10.78.0.1/32", "169.254.1.1"}, {"fd78::1/128", "fe80::1"}} {
		if ip := res.IPs[i]; ip.Address.String() != want.addr || ip.Gateway.String() != want.gw || *ip.Interface != 1 {
			t.Errorf("ips[%d] = %+v", i, ip)
		}
	}
	if len(res.Routes) != 3 || len(res.DNS.Nameservers) != 1 {
		t.Errorf("routes %v, dns %+v", res.Routes, res.DNS)
	}
}

func TestPluginAsAProgram(t *testing.T) {
	a := newAgent(t)
	netns, _ := endpointtest.NewPod(t)
	out, fail := a.run("VERSION", "", "", nil)
	if fail != nil || !strings.Contains(string(out), `"1.1.0"`) {
		t.Errorf("VERSION: %s %v", out, fail)
	}
	if _, fail := a.run("STATUS", "", "", a.conf("1.1.0")); fail != nil {
		t.Errorf("STATUS: %v", fail)
	}
	out, fail = a.run("ADD", "c1", netns, a.conf("1.1.0", `"args":{"cni":{"ips":["10.78.0.77/24"],"labels":[{"key":"app","value":"x"}]}}`))
	if fail != nil {
		t.Fatal(fail)
	}
	if info, _ := a.Get("c1"); info.IPv4.String() != "10.78.0.77" || info.Labels["app"] != "x" || info.Key() != "default/c1" {
		t.Errorf("endpoint %+v", info)
	}
	prev := `"prevResult":` + string(out)
	if _, fail = a.run("CHECK", "c1", netns, a.conf("1.1.0", prev)); fail != nil {
		t.Errorf("CHECK: %v", fail)
	}
	if _, fail = a.run("GC", "", "", a.conf("1.1.0", `"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`)); fail != nil || len(a.List()) != 1 {
		t.Errorf("GC with c1 valid: %v, %v", fail, a.List())
	}
	if _, fail = a.run("GC", "", "", a.conf("1.1.0", `"cni.dev/valid-attachments":[]`)); fail != nil {
		t.Errorf("GC: %v", fail)
	}
	a.nothingLeft()
	if _, fail = a.run("CHECK", "c1", netns, a.conf("1.1.0", prev)); fail == nil || fail.Code != types.ErrUnknownContainer {
		t.Errorf("CHECK of what GC removed: %v", fail)
	}
}

func TestCheckAfterDamage(t *testing.T) {
	a := newAgent(t)
	netns, _ := endpointtest.NewPod(t)
	out, fail := a.run("ADD", "c1", netns, a.conf("1.0.0"))
	if fail != nil {
		t.Fatal(fail)
	}
	info := a.List()[0]
	conf := a.conf("1.0.0", `"prevResult":`+string(out))
	wrong := a.conf("1.0.0", `"prevResult":`+strings.ReplaceAll(string(out), info.IPv4.String(), "10.78.0.99"))
	if _, fail := a.run("CHECK", "c1", netns, wrong); fail == nil || fail.Code != CodeUnhealthy || !strings.Contains(fail.Msg, "10.78.0.99 is not the endpoint's") {
		t.Errorf("other address: %v", fail)
	}
	link, err := netlink.LinkByName(info.HostIf)
	if err != nil {
		t.Fatal(err)
	}
	dst := &net.IPNet{IP: info.IPv4.AsSlice(), Mask: net.CIDRMask(32, 32)}
	if err := netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
	if _, fail := a.run("CHECK", "c1", netns, conf); fail == nil || fail.Code != CodeUnhealthy || !strings.Contains(fail.Msg, "route "+dst.String()+" dev "+info.HostIf+" is missing") {
		t.Errorf("route deleted: %v", fail)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if _, fail := a.run("CHECK", "c1", netns, conf); fail == nil || fail.Code != CodeUnhealthy || !strings.Contains(fail.Msg, "interface "+info.HostIf+" is missing") {
		t.Errorf("veth deleted: %v", fail)
	}
}

func TestAgentDown(t *testing.T) {
	a := newAgent(t)
	netns, _ := endpointtest.NewPod(t)
	if _, fail := a.run("ADD", "c1", netns, a.conf("1.1.0")); fail != nil {
		t.Fatal(fail)
	}
	a.stop()
	for command, code := range map[string]uint{
		"ADD": types.ErrTryAgainLater, "CHECK": types.ErrTryAgainLater, "GC": types.ErrTryAgainLater, "STATUS": types.ErrPluginNotAvailable,
	} {
		_, fail := a.run(command, "c1", netns, a.conf("1.1.0", `"prevResult":{"cniVersion":"1.1.0"}`))
		if command == "ADD" {
			_, fail = a.run(command, "c2", netns, a.conf("1.1.0"))
		}
		if fail == nil || fail.Code != code || !strings.Contains(fail.Msg, a.socket) {
			t.Errorf("%s: %+v", command, fail)
		}
	}
	for range 2 {
		if _, fail := a.run("DEL", "c1", netns, a.conf("1.1.0")); fail != nil {
			t.Fatal(fail)
		}
	}
	if got := a.devices(); len(got) > 0 {
		t.Errorf("DEL left %v", got)
	}
	a.start()
	a.nothingLeft()
}

// TestAgentDownFromElsewhere removes the pod's end when the plugin is not in the node's namespace.
func TestAgentDownFromElsewhere(t *testing.T) {
	a := newAgent(t)
	netns, _ := endpointtest.NewPod(t)
	elsewhere, _ := endpointtest.NewPod(t)
	if _, fail := a.run("ADD", "c1", netns, a.conf("1.1.0")); fail != nil {
		t.Fatal(fail)
	}
	a.stop()
	runIn(t, elsewhere, func() {
		if _, fail := a.run("DEL", "c1", netns, a.conf("1.1.0")); fail != nil {
			t.Error(fail)
		}
	})
	if got := a.devices(); len(got) > 0 {
		t.Errorf("DEL left %v", got)
	}
	a.start()
	a.nothingLeft()
}

// TestPodDatapathByCNI: a network's key and a pod's argument ask for the XDP datapath, and the
// agent remembers.
func TestPodDatapathByCNI(t *testing.T) {
	a := newAgent(t)
	for _, tc := range []struct {
		name, want string
		conf       []byte
		env        []string
	}{
		{name: "none", conf: a.conf("1.1.0")},
		{name: "key", conf: a.conf("1.1.0", `"datapath":"xdp"`), want: "xdp"},
		{name: "argument", conf: a.conf("1.1.0"), env: []string{"CNI_ARGS=WEFT_DATAPATH=xdp"}, want: "xdp"},
		{name: "former-key", conf: a.conf("1.1.0", `"road":"xdp"`), want: "xdp"},                               // glossary: format
		{name: "former-argument", conf: a.conf("1.1.0"), env: []string{"CNI_ARGS=WEFT_ROAD=xdp"}, want: "xdp"}, // glossary: format
	} {
		netns, _ := endpointtest.NewPod(t)
		if _, fail := a.run("ADD", tc.name, netns, tc.conf, tc.env...); fail != nil {
			t.Fatal(tc.name, fail)
		}
		a.stop()
		a.start()
		info, ok := a.Get(tc.name)
		if !ok || info.CNIDatapath != tc.want || info.XDPDatapath() != (tc.want != "") || info.Datapath().XDPDatapath != info.XDPDatapath() {
			t.Errorf("%s: %+v", tc.name, info)
		}
		if _, fail := a.run("DEL", tc.name, netns, a.conf("1.1.0", `"datapath":"edited since"`)); fail != nil {
			t.Errorf("%s: DEL: %v", tc.name, fail)
		}
	}
	a.nothingLeft()
}

// TestNetworkAndAddressesByCNI: a network's number is the endpoint's, and all addresses that are
// asked for are its and in the result, also of a network in which they are others' addresses.
func TestNetworkAndAddressesByCNI(t *testing.T) {
	a := newAgent(t)
	ips := []string{"10.78.0.20", "10.78.0.21/24", "fd78::20", "fd78::21", "fd78::22"}
	want := []string{"10.78.0.20/32", "fd78::20/128", "10.78.0.21/32", "fd78::21/128", "fd78::22/128"}
	for id, network := range map[string]uint32{"cluster": 0, "blue": 7} {
		conf := a.conf("1.1.0", fmt.Sprintf(`"networkID":%d`, network), `"args":{"cni":{"ips":["`+strings.Join(ips, `","`)+`"]}}`)
		netns, _ := endpointtest.NewPod(t)
		out, fail := a.run("ADD", id, netns, conf)
		if fail != nil {
			t.Fatal(id, fail)
		}
		var result struct{ IPs []struct{ Address string } }
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, ip := range result.IPs {
			got = append(got, ip.Address)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the result has %v, want %v", id, got, want)
		}
		if info, ok := a.Get(id); !ok || info.NetworkID != network || len(info.Addresses()) != len(want) {
			t.Errorf("%s: %+v", id, info)
		}
		with := []byte(strings.TrimSuffix(string(conf), "}") + `,"prevResult":` + string(out) + "}")
		if _, fail := a.run("CHECK", id, netns, with); fail != nil {
			t.Errorf("%s: CHECK: %v", id, fail)
		}
		defer a.run("DEL", id, netns, conf)
	}
}

func TestBadPluginInput(t *testing.T) {
	a := newAgent(t)
	netns, _ := endpointtest.NewPod(t)
	for _, tc := range []struct {
		name, netns, want string
		code              uint
		conf              []byte
		env               []string
	}{
		{name: "not JSON", conf: []byte("{"), code: types.ErrDecodingFailure, want: "unmarshall network config"},
		{name: "misspelt key", conf: a.conf("1.1.0", `"sokcet":"/x"`), code: types.ErrUnsupportedField, want: `unknown key "sokcet" with value "/x"`},
		{name: "ipam", conf: a.conf("1.1.0", `"ipam":{"type":"host-local"}`), code: types.ErrUnsupportedField, want: "the agent gives addresses"},
		{name: "instance", conf: a.conf("1.1.0", `"instance":"../x"`), code: types.ErrInvalidNetworkConfig, want: "instance"},
		{name: "socket", conf: []byte(`{"cniVersion":"1.1.0","name":"weft","type":"weft-cni","socket":"agent.sock"}`), code: types.ErrInvalidNetworkConfig, want: "absolute path"},
		{name: "version", conf: a.conf("9.9.9"), code: types.ErrIncompatibleCNIVersion, want: "incompatible CNI versions"},
		{name: "bad fixed address", conf: a.conf("1.1.0", `"args":{"cni":{"ips":["10.78.0"]}}`), code: types.ErrInvalidNetworkConfig, want: "args.cni.ips[0]"},
		{name: "foreign fixed address", conf: a.conf("1.1.0", `"args":{"cni":{"ips":["192.0.2.1"]}}`), code: types.ErrInvalidNetworkConfig, want: "192.0.2.1 is not usable"},
		{name: "network out of range", conf: a.conf("1.1.0", `"networkID":16777216`), code: types.ErrInvalidNetworkConfig, want: "networkID: 16777216: want at most 16777215"},
		{name: "network of a chain", conf: a.conf("1.1.0", `"networkID":7`, `"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.1/24"}]}`), code: types.ErrInvalidEnvironmentVariables, want: "remove networkID"},
		{name: "seventeen addresses", conf: a.conf("1.1.0", `"args":{"cni":{"ips":[`+seventeen()+`]}}`), code: types.ErrInvalidEnvironmentVariables, want: "fd78::10 is one too many"},
		{name: "unknown argument", conf: a.conf("1.1.0"), env: []string{"CNI_ARGS=FOO=bar"}, code: types.ErrInvalidEnvironmentVariables, want: "FOO=bar"},
		{name: "pod name", conf: a.conf("1.1.0"), env: []string{"CNI_ARGS=K8S_POD_NAME=../x"}, code: types.ErrInvalidEnvironmentVariables, want: "pod: "},
		{name: "long interface", conf: a.conf("1.1.0"), env: []string{"CNI_IFNAME=abcdefghijklmnop"}, code: types.ErrInvalidEnvironmentVariables, want: "interface name"},
		{name: "slash in interface", conf: a.conf("1.1.0"), env: []string{"CNI_IFNAME=a/b"}, code: types.ErrInvalidEnvironmentVariables, want: "interface name"},
		{name: "netns is a file", netns: a.bin, conf: a.conf("1.1.0"), code: types.ErrInvalidNetNS, want: "is not a network namespace"},
		{name: "netns is gone", netns: "/run/netns/wt-cni-none", conf: a.conf("1.1.0"), code: types.ErrInvalidNetNS, want: "does not exist"},
		{name: "own netns", netns: "/proc/self/ns/net", conf: a.conf("1.1.0"), code: types.ErrInvalidNetNS, want: "the node's own"},
		{name: "prevResult without address", conf: a.conf("1.1.0", `"prevResult":{"cniVersion":"1.1.0"}`), code: types.ErrInvalidEnvironmentVariables, want: "prevResult: it has no address on eth0"},
		{name: "prevResult index", conf: a.conf("1.1.0", `"prevResult":{"cniVersion":"1.1.0","ips":[{"interface":7,"address":"10.0.0.1/24"}]}`), code: types.ErrInvalidNetworkConfig, want: "prevResult.ips[0].interface"},
		{name: "no such datapath", conf: a.conf("1.1.0", `"datapath":"tcx"`), code: types.ErrInvalidNetworkConfig, want: `datapath: "tcx" is no datapath to ask for: want "xdp"`},
		{name: "no such datapath by argument", conf: a.conf("1.1.0"), env: []string{"CNI_ARGS=WEFT_DATAPATH=XDP"}, code: types.ErrInvalidEnvironmentVariables, want: `datapath: "XDP" is no datapath to ask for: want "xdp"`},
		{name: "datapath of a chain", conf: a.conf("1.1.0", `"datapath":"xdp"`, `"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.1/24"}]}`), code: types.ErrInvalidEnvironmentVariables, want: "datapath: an interface of another CNI plugin"},
		{name: "prevResult before chains", conf: a.conf("0.2.0", `"prevResult":{"cniVersion":"0.2.0"}`), code: types.ErrInvalidNetworkConfig, want: "has no chains"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.netns == "" {
				tc.netns = netns
			}
			_, fail := a.run("ADD", "c1", tc.netns, tc.conf, tc.env...)
			if fail == nil || fail.Code != tc.code || !strings.Contains(fail.Error(), tc.want) {
				t.Errorf("got %+v, want code %d and %q", fail, tc.code, tc.want)
			}
		})
	}
	a.nothingLeft()
	if _, fail := a.run("DEL", "c1", netns, a.conf("1.1.0", `"sokcet":"/x"`)); fail != nil {
		t.Errorf("DEL is stuck on an unknown key: %v", fail)
	}
}

// seventeen are so many addresses, quoted.
func seventeen() string {
	var out []string
	for i := range 17 {
		out = append(out, fmt.Sprintf(`"fd78::%x"`, i))
	}
	return strings.Join(out, ",")
}

func TestPoolExhaustedIsTransient(t *testing.T) {
	a := newAgent(t)
	a.stop()
	a.opt.Ranges = []netip.Prefix{netip.MustParsePrefix("10.78.0.4/32")}
	a.start()
	nsA, _ := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	if _, fail := a.run("ADD", "a", nsA, a.conf("1.1.0")); fail != nil {
		t.Fatal(fail)
	}
	if _, fail := a.run("ADD", "b", nsB, a.conf("1.1.0")); fail == nil || fail.Code != types.ErrTryAgainLater || !strings.Contains(fail.Msg, "no free IPv4 address in 10.78.0.4/32") {
		t.Errorf("got %+v", fail)
	}
}

// TestAddTime prints how long ADDs take; the limit is for people to watch, not for tests.
func TestAddTime(t *testing.T) {
	a := newAgent(t)
	var times []time.Duration
	for range 21 {
		netns, _ := endpointtest.NewPod(t)
		start := time.Now()
		if _, fail := a.run("ADD", "c1", netns, a.conf("1.1.0")); fail != nil {
			t.Fatal(fail)
		}
		times = append(times, time.Since(start))
		if _, fail := a.run("DEL", "c1", netns, a.conf("1.1.0")); fail != nil {
			t.Fatal(fail)
		}
	}
	slices.Sort(times)
	t.Logf("ADD by the plugin as a program, median of %d: %s (min %s, max %s)", len(times), times[10], times[0], times[20])
}

func TestPassOnChangesNothing(t *testing.T) {
	for _, tc := range []struct{ prev, want string }{
		{`{"cniVersion":"1.1.0", "x.org/unknown": 12345678901234567890, "ips":[]}`, `{"cniVersion":"1.1.0", "x.org/unknown": 12345678901234567890, "ips":[]}`},
		{`{"ips":[]}`, `{"cniVersion":"0.3.1","ips":[]}`},
	} {
		c := &config{CNIVersion: "0.3.1", PrevResult: json.RawMessage(tc.prev)}
		if got, err := c.passOn(); err != nil || string(got) != tc.want {
			t.Errorf("passed on %s (%v), want %s", got, err, tc.want)
		}
	}
}
