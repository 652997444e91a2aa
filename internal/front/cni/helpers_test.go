package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/endpoint/endpointtest"
)

// TestMain makes the test binary the plugin when it is called by that name, as weft does.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == Type {
		Main()
		return
	}
	endpointtest.Main(m)
}

// agent is a manager behind its real handler on a real socket.
type agent struct {
	*endpoint.Manager
	t      testing.TB
	dp     *endpointtest.Datapath
	dir    *endpointtest.Directory
	opt    endpoint.Options
	socket string
	server *http.Server
	listen net.Listener
	// bin holds the plugin, and foreign ones that a test built.
	bin string
}

func newAgent(t testing.TB) *agent {
	t.Helper()
	endpointtest.NeedRoot(t)
	tmp := t.TempDir()
	a := &agent{t: t, dp: &endpointtest.Datapath{}, dir: &endpointtest.Directory{},
		socket: tmp + "/agent.sock", bin: tmp + "/bin"}
	a.opt = endpoint.Options{
		StateDir: tmp + "/state", NodeName: "n1", MTU: 1500, Datapath: a.dp, Directory: a.dir,
		Ranges: []netip.Prefix{netip.MustParsePrefix("10.78.0.0/24"),
			netip.MustParsePrefix("fd78::/64")},
		Log: slog.New(slog.DiscardHandler),
	}
	self, err := os.Executable()
	if err == nil {
		err = os.Mkdir(a.bin, 0o755)
	}
	if err == nil {
		err = os.Symlink(self, filepath.Join(a.bin, Type))
	}
	if err != nil {
		t.Fatal(err)
	}
	a.start()
	t.Cleanup(func() {
		a.stop()
		if err := a.RemoveAll(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return a
}

func (a *agent) start() {
	a.t.Helper()
	m, err := endpoint.NewManager(a.opt)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := m.Restore(context.Background()); err != nil {
		a.t.Fatal(err)
	}
	l, err := net.Listen("unix", a.socket)
	if err != nil {
		a.t.Fatal(err)
	}
	a.Manager, a.listen = m, l
	a.server = &http.Server{Handler: Handler(m)}
	go a.server.Serve(l)
}

func (a *agent) stop() {
	a.listen.Close()
	a.server.Close()
}

// conf is a network configuration for the agent, with extra keys given as JSON members.
func (a *agent) conf(version string, extra ...string) []byte {
	members := append([]string{
		fmt.Sprintf(`"cniVersion":%q,"name":"weft","type":%q,"socket":%q`, version, Type, a.socket),
	}, extra...)
	return []byte("{" + strings.Join(members, ",") + "}")
}

// run executes the plugin as a runtime does.
func (a *agent) run(command, container, netns string, conf []byte,
	env ...string) (stdout []byte, failure *types.Error) {
	a.t.Helper()
	cmd := exec.Command(filepath.Join(a.bin, Type))
	cmd.Env = append([]string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_NETNS=" + netns,
		"CNI_IFNAME=eth0", "CNI_PATH=" + a.bin,
		"GORACE=atexit_sleep_ms=0", // else a second per call
	}, env...)
	cmd.Stdin = bytes.NewReader(conf)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	if err == nil {
		return out.Bytes(), nil
	}
	failure = &types.Error{}
	if decErr := json.Unmarshal(out.Bytes(), failure); decErr != nil || failure.Msg == "" {
		a.t.Fatalf("%s failed without a CNI error: %v\nstdout: %s\nstderr: %s", command, err,
			out.Bytes(), stderr.Bytes())
	}
	return nil, failure
}

// devices returns the node's interfaces that tests make.
func (a *agent) devices() (out []string) {
	a.t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		a.t.Fatal(err)
	}
	for _, l := range links {
		if l.Type() == "veth" {
			out = append(out, l.Attrs().Name)
		}
	}
	return out
}

func (a *agent) nothingLeft() {
	a.t.Helper()
	if len(a.List()) > 0 || len(a.devices()) > 0 || len(a.dp.Attached()) > 0 ||
		len(a.dir.Objects()) > 0 {
		a.t.Errorf("left: %v, devices %v, attached %v, published %v", a.List(), a.devices(),
			a.dp.Attached(), a.dir.Objects())
	}
}
