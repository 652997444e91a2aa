package endpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/netdev"
)

// What a failed call is about; match with errors.Is. The text says which field and what to do.
var (
	// ErrInvalid means that a field of the request is wrong.
	ErrInvalid = errors.New("invalid request")
	// ErrNetNS means that the network namespace cannot be used.
	ErrNetNS = errors.New("unusable network namespace")
	// ErrNotFound means that there is no such endpoint.
	ErrNotFound = errors.New("no such endpoint")
	// ErrUnhealthy means that an endpoint is not as Add made it.
	ErrUnhealthy = errors.New("endpoint is damaged")
	// ErrUnavailable means that the manager cannot serve an Add now.
	ErrUnavailable = errors.New("not available")
)

var (
	containerIDPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.\-]{0,255}$`)
	namePattern        = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	notNamePattern     = regexp.MustCompile(`[^a-z0-9]+`)
	hexPattern         = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// ID returns the attachment's endpoint ID: ten hexadecimal digits.
func (a Attachment) ID() string {
	sum := sha256.Sum256([]byte(a.ContainerID + "/" + a.IfName))
	return hex.EncodeToString(sum[:5])
}

// HostIfPrefix begins the name of every host-side veth that Weft makes.
const HostIfPrefix = netdev.HostPrefix

// HostIf returns the name of the host-side veth that Add makes for the attachment.
func (a Attachment) HostIf() string { return HostIfPrefix + a.ID() }

// validate refuses what could not be a container or an interface.
func (a Attachment) validate() error {
	if !containerIDPattern.MatchString(a.ContainerID) {
		return invalid("containerID",
			"%q must be 1-256 of letters, digits, '_', '.', '-', beginning with a letter or digit",
			a.ContainerID)
	}
	switch name := a.IfName; {
	case name == "" || len(name) > 15:
		return invalid("ifName", "%q must have 1-15 bytes", name)
	case name == "." || name == ".." || name == "all" || name == "default" || name == "lo":
		return invalid("ifName", "%q means something else to the kernel: choose another", name)
	case strings.ContainsFunc(name,
		func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == ':' }):
		return invalid("ifName", "%q must not hold spaces, '/', ':' or non-ASCII", name)
	}
	return nil
}

// normalise checks the request and fills in defaults.
func (r *AddRequest) normalise() error {
	if err := r.Attachment.validate(); err != nil {
		return err
	}
	if !filepath.IsAbs(r.NetNS) {
		return invalid("netns",
			"%q must be an absolute path such as /run/netns/NAME or /proc/PID/ns/net", r.NetNS)
	}
	if r.Namespace == "" {
		r.Namespace = "default"
	}
	if r.Pod == "" {
		r.Pod = shortName(r.ContainerID)
	}
	if !namePattern.MatchString(r.Namespace) {
		return invalid("namespace", "%q must be lower-case letters, digits, '-' and '.'",
			r.Namespace)
	}
	if !namePattern.MatchString(r.Pod) {
		return invalid("pod", "%q must be lower-case letters, digits, '-' and '.'", r.Pod)
	}
	if r.PodDatapath != "" && r.PodDatapath != v1alpha1.DatapathXDP {
		return invalid("datapath",
			"%q is no datapath to ask for: want %q, or none for an ordinary interface",
			r.PodDatapath, v1alpha1.DatapathXDP)
	}
	if r.PodDatapath != "" && r.Chained {
		return invalid("datapath",
			"an interface of another CNI plugin cannot have the XDP datapath: remove it, or let weft-cni make the interface")
	}
	return r.checkAddresses()
}

func (r *AddRequest) checkAddresses() error {
	if err := checkFixed(r.Addresses); err != nil {
		return invalid("addresses", "%w", err)
	}
	if r.NetworkID > datapath.MaxNetwork {
		return invalid("networkID", "%d: want at most %d", r.NetworkID, datapath.MaxNetwork)
	}
	if r.NetworkID != 0 && r.Chained {
		return invalid("networkID",
			"%d: the interface of another CNI plugin is in the cluster's network: remove networkID, or let weft-cni make the interface", r.NetworkID)
	}
	if r.NetworkID != 0 && r.PodDatapath != "" {
		return invalid("datapath", "pods of network %d cannot have the XDP datapath: remove it",
			r.NetworkID)
	}
	if r.Chained && len(r.Addresses) == 0 {
		return invalid("prevResult",
			"it has no address on %s: put weft-cni after a plugin that gives one", r.IfName)
	}
	return nil
}

// checkFixed refuses addresses that one endpoint cannot have together.
func checkFixed(addrs []netip.Addr) error {
	for i, a := range addrs {
		switch {
		case !a.IsValid() || a.Zone() != "" || a.Is4In6():
			return fmt.Errorf("%s is not a plain IPv4 or IPv6 address", a)
		case i >= MaxAddresses:
			return fmt.Errorf("%s is one too many: an endpoint has at most %d addresses", a,
				MaxAddresses)
		case slices.Contains(addrs[:i], a):
			return fmt.Errorf("%s is there twice", a)
		}
	}
	return nil
}

// shortName makes a pod name of a container ID: the usual twelve digits of a long
// hexadecimal one, all that is allowed of any other.
func shortName(containerID string) string {
	if hexPattern.MatchString(containerID) {
		return containerID[:12]
	}
	name := notNamePattern.ReplaceAllString(strings.ToLower(containerID), "-")
	if len(name) > 63 {
		name = name[:63]
	}
	if name = strings.Trim(name, "-"); name == "" {
		return "container"
	}
	return name
}

func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrInvalid, field, fmt.Errorf(format, args...))
}
