package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/endpoint/endpointtest"
	weftns "weft.dev/weft/internal/netns"
)

func runIn(t testing.TB, netns string, fn func()) {
	t.Helper()
	if err := weftns.Do(netns, func() error { fn(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// build compiles foreign programs, at the versions that go.mod names, next to the plugin. Their
// modules must be there already: the test may be in a namespace without a network.
func (a *agent) build(pkgs ...string) {
	a.t.Helper()
	cmd := exec.Command("go", append([]string{"build", "-o", a.bin + "/"}, pkgs...)...)
	cmd.Env = append(os.Environ(), "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		a.t.Fatalf("go build %v (have its modules been fetched? run `make fetch`): %v\n%s", pkgs,
			err, out)
	}
}

const (
	cnitoolPkg = "github.com/containernetworking/cni/cnitool"
	pluginsPkg = "github.com/containernetworking/plugins/plugins/"
)

// conflist writes a network named weft made of the plugins.
func (a *agent) conflist(version string, plugins ...string) (dir string) {
	a.t.Helper()
	dir = a.t.TempDir()
	text := fmt.Sprintf(`{"cniVersion":%q,"name":"weft","plugins":[%s]}`, version,
		strings.Join(plugins, ","))
	if err := os.WriteFile(filepath.Join(dir, "10-weft.conflist"), []byte(text),
		0o600); err != nil {
		a.t.Fatal(err)
	}
	return dir
}

func (a *agent) cnitool(confDir, verb, netns string) ([]byte, error) {
	a.t.Helper()
	cmd := exec.Command(filepath.Join(a.bin, "cnitool"), verb, "weft", netns)
	cmd.Env = append(os.Environ(), "NETCONFPATH="+confDir, "CNI_PATH="+a.bin, "CNI_IFNAME=eth0",
		"GORACE=atexit_sleep_ms=0",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("cnitool %s: %w: %s%s", verb, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

func (a *agent) mustCnitool(confDir, verb, netns string) []byte {
	a.t.Helper()
	out, err := a.cnitool(confDir, verb, netns)
	if err != nil {
		a.t.Fatal(err)
	}
	return out
}

func (a *agent) self() string { return fmt.Sprintf(`{"type":%q,"socket":%q}`, Type, a.socket) }

func TestCnitool(t *testing.T) {
	a := newAgent(t)
	a.build(cnitoolPkg)
	for _, ver := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(ver, func(t *testing.T) {
			netns, _ := endpointtest.NewPod(t)
			dir := a.conflist(ver, a.self())
			out := a.mustCnitool(dir, "add", netns)
			if !bytes.Contains(out, []byte(a.List()[0].MAC)) || a.List()[0].Key() != "shop/web" {
				t.Errorf("result %s, endpoint %+v", out, a.List())
			}
			if ver != "0.3.1" {
				a.mustCnitool(dir, "check", netns)
			}
			if ver == "1.1.0" {
				a.mustCnitool(dir, "status", netns)
			}
			a.mustCnitool(dir, "del", netns)
			a.mustCnitool(dir, "del", netns)
			a.nothingLeft()
		})
	}
	t.Run("gc", func(t *testing.T) {
		netns, _ := endpointtest.NewPod(t)
		dir := a.conflist("1.1.0", a.self())
		a.mustCnitool(dir, "add", netns)
		a.mustCnitool(dir, "gc", netns)
		a.nothingLeft()
	})
}

func TestChainedAfterBridgeAndPtp(t *testing.T) {
	a := newAgent(t)
	a.build(cnitoolPkg, pluginsPkg+"main/bridge", pluginsPkg+"main/ptp",
		pluginsPkg+"ipam/host-local")
	ipam := fmt.Sprintf(`"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.79.0.0/24"}],[{"subnet":"fd79::/64"}]],"routes":[{"dst":"0.0.0.0/0"}]}`, t.TempDir())
	first := map[string]string{
		"bridge": `{"type":"bridge","bridge":"wtbr0","isGateway":true,` + ipam + `}`,
		"ptp":    `{"type":"ptp",` + ipam + `}`,
	}
	for name, plugin := range first {
		for _, ver := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
			t.Run(name+" "+ver, func(t *testing.T) { a.chain(t, name, ver, plugin) })
		}
	}
	if link, err := netlink.LinkByName("wtbr0"); err == nil {
		netlink.LinkDel(link)
	}
}

func (a *agent) chain(t *testing.T, name, ver, plugin string) {
	netns, pod := endpointtest.NewPod(t)
	dir := a.conflist(ver, plugin, a.self())
	out := a.mustCnitool(dir, "add", netns)
	info, ok := a.Get("shop/web")
	if !ok || !info.Chained {
		t.Fatalf("endpoint %+v", info)
	}
	checkChained(t, a, name, info, out, pod)
	if ver != "0.3.1" {
		a.mustCnitool(dir, "check", netns)
	}
	a.stop() // the agent is killed and comes back
	a.dp.DetachEndpoint(info.Datapath())
	a.start()
	if got := a.dp.Attached()[info.Slot]; got.HostIf != info.HostIf || !got.Chained {
		t.Errorf("after a restart attached %+v", got)
	}
	a.mustCnitool(dir, "del", netns)
	a.mustCnitool(dir, "del", netns)
	a.nothingLeft()
}

func checkChained(t *testing.T, a *agent, name string, info endpoint.Info, out []byte,
	pod *os.File) {
	t.Helper()
	host, err := netlink.LinkByName(info.HostIf)
	if err != nil {
		t.Fatal(err)
	}
	wantGateway := host.Attrs().HardwareAddr.String()
	if name == "bridge" {
		br, err := netlink.LinkByName("wtbr0")
		if err != nil {
			t.Fatal(err)
		}
		wantGateway = br.Attrs().HardwareAddr.String()
	}
	if info.GatewayMAC != wantGateway || !info.IPv4.IsValid() || !info.IPv6.IsValid() ||
		info.HostIf == "weft"+info.ID {
		t.Errorf("endpoint %+v, want gateway %s", info, wantGateway)
	}
	runIn(t, fmt.Sprintf("/proc/self/fd/%d", pod.Fd()), func() {
		link, err := netlink.LinkByName("eth0")
		if err != nil || link.Attrs().HardwareAddr.String() != info.MAC ||
			link.Attrs().ParentIndex != host.Attrs().Index {
			t.Errorf("pod's interface %+v (%v), endpoint %+v", link, err, info)
		}
	})
	var res current.Result
	if err := json.Unmarshal(out, &res); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range res.Interfaces {
		names = append(names, i.Name)
	}
	want := map[string]string{"bridge": "wtbr0 " + info.HostIf + " eth0",
		"ptp": info.HostIf + " eth0"}[name]
	if got := strings.Join(names, " "); got != want || len(res.IPs) != 2 {
		t.Errorf("passed on interfaces %s and %d addresses, want %s", got, len(res.IPs), want)
	}
}

// TestChainedAddressReused gives an address to a new pod while the old endpoint, whose
// interface is gone, was never deleted.
func TestChainedAddressReused(t *testing.T) {
	a := newAgent(t)
	a.build(pluginsPkg+"main/ptp", pluginsPkg+"ipam/host-local")
	nsA, fileA := endpointtest.NewPod(t)
	nsB, _ := endpointtest.NewPod(t)
	add := func(container, netns string) string {
		ptp := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"weft","type":"ptp","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.79.1.0/24","rangeStart":"10.79.1.9","rangeEnd":"10.79.1.9"}]]}}`, t.TempDir())
		cmd := exec.Command(filepath.Join(a.bin, "ptp"))
		cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+container,
			"CNI_NETNS="+netns, "CNI_IFNAME=eth0", "CNI_PATH="+a.bin)
		cmd.Stdin = strings.NewReader(ptp)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("ptp: %v %s", err, out)
		}
		return `"prevResult":` + string(out)
	}
	if _, fail := a.run("ADD", "a", nsA, a.conf("1.0.0", add("a", nsA))); fail != nil {
		t.Fatal(fail)
	}
	prev := add("b", nsB)
	if _, fail := a.run("ADD", "b", nsB, a.conf("1.0.0", prev)); fail == nil ||
		!strings.Contains(fail.Msg, "taken by pod default/a") {
		t.Errorf("while the old interface lives: %v", fail)
	}
	host, _ := a.Get("a")
	link, err := netlink.LinkByName(host.HostIf)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	fileA.Close()
	if _, fail := a.run("ADD", "b", nsB, a.conf("1.0.0", prev)); fail != nil {
		t.Fatal(fail)
	}
	if len(a.List()) != 1 || len(a.dp.Attached()) != 1 {
		t.Errorf("endpoints %+v", a.List())
	}
	if _, fail := a.run("DEL", "a", "", a.conf("1.0.0")); fail != nil || len(a.dp.Attached()) != 1 {
		t.Errorf("the late DEL of the old pod: %v, attached %v", fail, a.dp.Attached())
	}
	if info, ok := a.Get("b"); ok {
		if link, err := netlink.LinkByName(info.HostIf); err == nil {
			netlink.LinkDel(link)
		}
	}
}
