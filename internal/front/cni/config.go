package cni

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
)

// runDir is where agents have their sockets.
const runDir = "/run/weft"

// bpfDir is where agents pin their programs.
const bpfDir = "/sys/fs/bpf/weft"

var instancePattern = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// config is the plugin's network configuration.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	// Instance names the agent; the default agent has none.
	Instance string `json:"instance"`
	// Socket is the agent's socket. Default: that of the instance.
	Socket string `json:"socket"`
	// PodDatapath is v1alpha1.DatapathXDP to ask for the XDP datapath for every pod of the network;
	// WEFT_DATAPATH in CNI_ARGS asks for one.
	PodDatapath string `json:"datapath"`
	// FormerDatapath is PodDatapath under the name that it had first: networks outlive an upgrade.
	FormerDatapath string `json:"road"` // glossary: format
	// NetworkID is the network that the pods are in: 0 is the cluster's, in any other they reach
	// each other on their node only.
	NetworkID uint32 `json:"networkID"`
	// BPF is the agent's directory of pins. Default: that of the instance.
	BPF string `json:"bpf"`
	// Args follow the CNI conventions: args.cni.ips and args.cni.labels.
	Args struct {
		CNI struct {
			IPs    []string `json:"ips"`
			Labels []struct {
				Key   string `json:"key"`
				Value string `json:"value"`
			} `json:"labels"`
		} `json:"cni"`
	} `json:"args"`
	DNS types.DNS `json:"dns"`
	// PrevResult is kept as it came, so that a chained plugin passes it on unchanged.
	PrevResult       json.RawMessage      `json:"prevResult"`
	ValidAttachments []types.GCAttachment `json:"cni.dev/valid-attachments"`
}

// keys are those of config, and those that the runtime adds for others.
var keys = []string{
	"args", "bpf", "capabilities", "cniVersion", "datapath", "dns", "instance", "name", "networkID",
	"prevResult", "runtimeConfig", "socket", "type",
	"road", // glossary: format
}

// parseConfig decodes and checks what the runtime gives on standard input. Keys that the
// plugin would ignore are refused: a misspelt one must not silently mean the default.
func parseConfig(data []byte) (*config, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure,
			"network configuration is not a JSON object", err.Error())
	}
	for key, value := range raw {
		if err := checkKey(key, value); err != nil {
			return nil, err
		}
	}
	return parseAnyConfig(data)
}

// parseAnyConfig is parseConfig that lets unknown keys pass, for DEL: a pod must not be
// stuck because somebody edited the file since its ADD.
func parseAnyConfig(data []byte) (*config, error) {
	c := &config{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "network configuration", err.Error())
	}
	ver, err := (&version.ConfigDecoder{}).Decode(data)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "network configuration: cniVersion",
			err.Error())
	}
	c.CNIVersion, c.PodDatapath = ver, cmp.Or(c.PodDatapath, c.FormerDatapath)
	if bytes.Equal(c.PrevResult, []byte("null")) {
		c.PrevResult = nil
	}
	return c, c.check()
}

func checkKey(key string, value json.RawMessage) error {
	if slices.Contains(keys, key) || strings.HasPrefix(key, "cni.dev/") {
		return nil
	}
	hint := "remove it; weft-cni knows " + strings.Join(keys, ", ")
	if key == "ipam" {
		hint = "remove it; the agent gives addresses, from ipam.ranges or the Node object's podCIDRs"
	}
	if len(value) > 200 {
		value = append(slices.Clone(value[:200]), "..."...)
	}
	return types.NewError(types.ErrUnsupportedField,
		fmt.Sprintf("network configuration: unknown key %q with value %s", key, value), hint)
}

func (c *config) check() error {
	if c.Instance != "" && !instancePattern.MatchString(c.Instance) {
		return badConfig("instance", "%q must be 1-40 of a-z, 0-9 and '-'", c.Instance)
	}
	if c.Socket != "" && !filepath.IsAbs(c.Socket) {
		return badConfig("socket", "%q must be an absolute path", c.Socket)
	}
	if c.NetworkID > datapath.MaxNetwork {
		return badConfig("networkID", "%d: want at most %d", c.NetworkID, datapath.MaxNetwork)
	}
	if len(c.PrevResult) > 0 && c.PrevResult[0] != '{' {
		return badConfig("prevResult", "must be a JSON object")
	}
	return nil
}

func badConfig(field, format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig,
		"network configuration: "+field+": "+fmt.Sprintf(format, args...), "")
}

// socket is the path of the agent's admin socket.
func (c *config) socket() string {
	if c.Socket != "" {
		return c.Socket
	}
	return filepath.Join(runDir, c.Instance, "agent.sock")
}

// pins is where the agent of the instance pins its programs, unless its configuration says
// otherwise.
func (c *config) pins() string {
	if c.BPF != "" {
		return c.BPF
	}
	return filepath.Join(bpfDir, c.Instance)
}

// addresses are the fixed addresses that args ask for, with or without a prefix length.
func (c *config) addresses() ([]netip.Addr, error) {
	var out []netip.Addr
	for i, s := range c.Args.CNI.IPs {
		text, _, _ := strings.Cut(s, "/")
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, badConfig(fmt.Sprintf("args.cni.ips[%d]", i), "%v", err)
		}
		out = append(out, addr)
	}
	return out, nil
}

func (c *config) labels() map[string]string {
	if len(c.Args.CNI.Labels) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, l := range c.Args.CNI.Labels {
		out[l.Key] = l.Value
	}
	return out
}

// podArgs are the CNI_ARGS that kubelets give, and our own.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAME               types.UnmarshallableString
	K8S_POD_NAMESPACE          types.UnmarshallableString
	K8S_POD_UID                types.UnmarshallableString
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString
	WEFT_DATAPATH              types.UnmarshallableString
	WEFT_ROAD                  types.UnmarshallableString // glossary: format, WEFT_DATAPATH first
}

func parseArgs(s string) (podArgs, error) {
	var out podArgs
	if err := types.LoadArgs(s, &out); err != nil {
		return out, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: "+err.Error(),
			"set IgnoreUnknown=1 to pass arguments for other plugins")
	}
	return out, nil
}

// prevResult is what we need of an earlier plugin's result, the same in every version
// since chaining began. The library's own types are not used for it: they drop fields
// that they do not know and trust the input more than we do.
type prevResult struct {
	Interfaces []struct {
		Name    string `json:"name"`
		Sandbox string `json:"sandbox"`
	} `json:"interfaces"`
	IPs []struct {
		Interface *int   `json:"interface"`
		Address   string `json:"address"`
	} `json:"ips"`
}

// addressesOf returns the addresses that a result gives to an interface of the pod.
func addressesOf(raw json.RawMessage, ifName string) ([]netip.Addr, error) {
	var prev prevResult
	if err := json.Unmarshal(raw, &prev); err != nil {
		return nil, badConfig("prevResult", "%v", err)
	}
	var out []netip.Addr
	for i, ip := range prev.IPs {
		if n := ip.Interface; n != nil {
			if *n < 0 || *n >= len(prev.Interfaces) {
				return nil, badConfig(fmt.Sprintf("prevResult.ips[%d].interface", i),
					"%d is not one of %d interfaces", *n, len(prev.Interfaces))
			}
			if iface := prev.Interfaces[*n]; iface.Name != ifName || iface.Sandbox == "" {
				continue
			}
		}
		prefix, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return nil, badConfig(fmt.Sprintf("prevResult.ips[%d].address", i), "%v", err)
		}
		out = append(out, prefix.Addr())
	}
	return out, nil
}

// passOn returns a previous result as it must be printed: untouched, except that the
// version is added where an old plugin left it out.
func (c *config) passOn() ([]byte, error) {
	var prev map[string]json.RawMessage
	if err := json.Unmarshal(c.PrevResult, &prev); err != nil {
		return nil, badConfig("prevResult", "%v", err)
	}
	if _, ok := prev["cniVersion"]; ok {
		return c.PrevResult, nil
	}
	ver, err := json.Marshal(c.CNIVersion)
	if err != nil {
		return nil, err
	}
	prev["cniVersion"] = ver
	return json.Marshal(prev)
}

// addRequest is what an ADD asks of the agent.
func (c *config) addRequest(containerID, netns, ifName, args string) (*request, error) {
	pod, err := parseArgs(args)
	if err != nil {
		return nil, err
	}
	if c.PodDatapath != "" && c.PodDatapath != v1alpha1.DatapathXDP {
		return nil, badConfig("datapath",
			"%q is no datapath to ask for: want %q, or no such key for ordinary interfaces",
			c.PodDatapath, v1alpha1.DatapathXDP)
	}
	req := &request{
		ContainerID: containerID, IfName: ifName, NetNS: netns, Network: c.Name,
		NetworkID: c.NetworkID,
		Namespace: string(pod.K8S_POD_NAMESPACE), Pod: string(pod.K8S_POD_NAME),
		PodUID: string(pod.K8S_POD_UID),
		Labels: c.labels(), Chained: len(c.PrevResult) > 0,
		PodDatapath: cmp.Or(string(pod.WEFT_DATAPATH),
			string(pod.WEFT_ROAD), // glossary: format
			c.PodDatapath),
	}
	if !req.Chained {
		req.Addresses, err = c.addresses()
		return req, err
	}
	if gte, err := version.GreaterThanOrEqualTo(c.CNIVersion, "0.3.0"); err != nil || !gte {
		return nil, badConfig("prevResult",
			"version %s has no chains: set cniVersion to 0.3.0 or later", c.CNIVersion)
	}
	req.Addresses, err = addressesOf(c.PrevResult, ifName)
	return req, err
}

// checkRequest is what a CHECK asks of the agent.
func (c *config) checkRequest(containerID, netns, ifName string) (*request, error) {
	if len(c.PrevResult) == 0 {
		return nil, badConfig("prevResult", "missing: CHECK compares with the result of ADD")
	}
	addrs, err := addressesOf(c.PrevResult, ifName)
	return &request{ContainerID: containerID, IfName: ifName, NetNS: netns, Addresses: addrs}, err
}

func (c *config) gcRequest() (*request, error) {
	if c.Name == "" {
		return nil, errors.New("network configuration: name: missing")
	}
	req := &request{Network: c.Name, Keep: []endpoint.Attachment{}}
	for _, a := range c.ValidAttachments {
		req.Keep = append(req.Keep,
			endpoint.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	return req, nil
}
