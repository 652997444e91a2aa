package v1alpha1

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// DefaultNamespace is the namespace of a pod or an endpoint that names none.
const DefaultNamespace = "default"

// DefaultServiceAccount is the service account of a pod that names none.
const DefaultServiceAccount = "default"

// MaxAddresses is how many addresses a pod or an endpoint may have, of both families together.
const MaxAddresses = 16

// maxRanges is the number of podCIDRs that a node may have.
const maxRanges = 64

// maxErrors bounds the errors reported for one object.
const maxErrors = 50

// maxAnnotations is the size of all annotations of an object together, in bytes.
const maxAnnotations = 256 << 10

// FieldError says what is wrong with one field, by its dotted path.
type FieldError struct {
	Field string
	Msg   string
}

// Error is "field: msg".
func (e FieldError) Error() string {
	if e.Field == "" {
		return e.Msg
	}
	return e.Field + ": " + e.Msg
}

// Object is what every kind of this package can do.
type Object interface {
	// Meta is the object's name, namespace and labels.
	Meta() *ObjectMeta
	// Type is the object's apiVersion and kind.
	Type() *TypeMeta
	// SetDefaults fills in what may be left out.
	SetDefaults()
	// Validate names every field that is wrong, none for a good object.
	Validate() []FieldError
}

// kinds are the kinds of this package, and an empty object of each.
var kinds = []struct {
	name string
	make func() Object
}{
	{KindNode, func() Object { return &Node{} }},
	{KindPod, func() Object { return &Pod{} }},
	{KindEndpoint, func() Object { return &Endpoint{} }},
	{KindEpoch, func() Object { return &Epoch{} }},
	{KindIdentity, func() Object { return &Identity{} }},
	{KindEncryptionPolicy, func() Object { return &EncryptionPolicy{} }},
	{KindNamespace, func() Object { return &Namespace{} }},
}

// VersionOf is the apiVersion that objects of a kind carry.
func VersionOf(kind string) string {
	if kind == KindNamespace {
		return NamespaceVersion
	}
	return APIVersion
}

// Kinds are the kinds of this package.
func Kinds() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// New is an empty object of the kind, nil when there is no such kind.
func New(kind string) Object {
	for _, k := range kinds {
		if k.name == kind {
			return k.make()
		}
	}
	return nil
}

// Meta implements Object.
func (n *Node) Meta() *ObjectMeta { return &n.Metadata }

// Meta implements Object.
func (p *Pod) Meta() *ObjectMeta { return &p.Metadata }

// Meta implements Object.
func (e *Endpoint) Meta() *ObjectMeta { return &e.Metadata }

// Type implements Object.
func (n *Node) Type() *TypeMeta { return &n.TypeMeta }

// Type implements Object.
func (p *Pod) Type() *TypeMeta { return &p.TypeMeta }

// Type implements Object.
func (e *Endpoint) Type() *TypeMeta { return &e.TypeMeta }

// SetDefaults implements Object.
func (n *Node) SetDefaults() { n.TypeMeta.setDefaults(KindNode) }

// SetDefaults implements Object.
func (p *Pod) SetDefaults() {
	p.TypeMeta.setDefaults(KindPod)
	setDefault(&p.Metadata.Namespace, DefaultNamespace)
	setDefault(&p.Spec.ServiceAccount, DefaultServiceAccount)
	setPortDefaults(p.Spec.Ports)
}

// SetDefaults implements Object.
func (e *Endpoint) SetDefaults() {
	e.TypeMeta.setDefaults(KindEndpoint)
	setDefault(&e.Metadata.Namespace, DefaultNamespace)
	setDefault(&e.Spec.ServiceAccount, DefaultServiceAccount)
	setPortDefaults(e.Spec.Ports)
}

func (t *TypeMeta) setDefaults(kind string) {
	setDefault(&t.APIVersion, VersionOf(kind))
	setDefault(&t.Kind, kind)
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

// Validate implements Object.
func (n *Node) Validate() []FieldError {
	v := newValidator(n, KindNode)
	if n.Metadata.Namespace != "" {
		v.fail("metadata.namespace", "a Node has no namespace: take it away")
	}
	if len(n.Spec.Addresses) == 0 {
		v.fail("spec.addresses",
			"is missing: give the node's address on the wire, at most one per family")
	}
	v.onePerFamily("spec.addresses", n.Spec.Addresses)
	v.ranges("spec.podCIDRs", n.Spec.PodCIDRs)
	return v.errs
}

// Validate implements Object.
func (p *Pod) Validate() []FieldError {
	v := newValidator(p, KindPod)
	v.namespace(p.Metadata.Namespace)
	v.optionalName("spec.nodeName", p.Spec.NodeName)
	v.optionalName("spec.serviceAccount", p.Spec.ServiceAccount)
	v.addresses("spec.addresses", p.Spec.Addresses)
	v.ports("spec.ports", p.Spec.Ports)
	return v.errs
}

// Validate implements Object.
func (e *Endpoint) Validate() []FieldError {
	v := newValidator(e, KindEndpoint)
	v.namespace(e.Metadata.Namespace)
	v.name("spec.nodeName", e.Spec.NodeName)
	v.optionalName("spec.serviceAccount", e.Spec.ServiceAccount)
	if len(e.Spec.Addresses) == 0 {
		v.fail("spec.addresses", "is missing: give the endpoint's addresses, at most %d",
			MaxAddresses)
	}
	v.addresses("spec.addresses", e.Spec.Addresses)
	v.ports("spec.ports", e.Spec.Ports)
	if msg := checkMAC(e.Spec.MAC); e.Spec.MAC != "" && msg != "" {
		v.fail("spec.mac", "%s", msg)
	}
	if len(e.Status.Phase) > 63 || strings.Trim(e.Status.Phase, letters) != "" {
		v.fail("status.phase", "%s is not a phase: want one word, such as %s",
			quote(e.Status.Phase), EndpointReady)
	}
	if msg := checkIdentity(e.Status.Identity); msg != "" {
		v.fail("status.identity", "%s", msg)
	}
	return v.errs
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

type validator struct{ errs []FieldError }

// newValidator checks what all kinds have.
func newValidator(o Object, kind string) *validator {
	v := &validator{}
	t, m := o.Type(), o.Meta()
	if want := VersionOf(kind); t.APIVersion != want {
		v.fail("apiVersion", "is %s: want %s", quote(t.APIVersion), want)
	}
	if t.Kind != kind {
		v.fail("kind", "is %s: want %s", quote(t.Kind), kind)
	}
	v.name("metadata.name", m.Name)
	v.labels("metadata.labels", m.Labels)
	size := 0
	for _, k := range sortedKeys(m.Annotations) {
		size += len(k) + len(m.Annotations[k])
		if msg := checkLabelKey(k); msg != "" {
			v.fail("metadata.annotations["+k+"]", "%s", msg)
		}
	}
	if size > maxAnnotations {
		v.fail("metadata.annotations", "are %d bytes: want at most %d", size, maxAnnotations)
	}
	return v
}

func (v *validator) labels(field string, labels map[string]string) {
	for _, k := range sortedKeys(labels) {
		at := field + "[" + k + "]"
		if msg := checkLabelKey(k); msg != "" {
			v.fail(at, "%s", msg)
		}
		if msg := checkLabelValue(labels[k]); msg != "" {
			v.fail(at, "%s", msg)
		}
	}
}

func (v *validator) fail(field, format string, args ...any) {
	if len(v.errs) < maxErrors {
		v.errs = append(v.errs, FieldError{field, fmt.Sprintf(format, args...)})
	}
}

func (v *validator) name(field, name string) {
	if msg := CheckName(name); msg != "" {
		v.fail(field, "%s", msg)
	}
}

func (v *validator) optionalName(field, name string) {
	if name != "" {
		v.name(field, name)
	}
}

func (v *validator) namespace(name string) {
	if msg := CheckLabel(name); msg != "" {
		v.fail("metadata.namespace", "%s", msg)
	}
}

// addresses checks those of a pod.
func (v *validator) addresses(field string, addrs []netip.Addr) {
	for i, a := range addrs {
		f := fmt.Sprintf("%s[%d]", field, i)
		msg := CheckAddr(a)
		switch at := slices.Index(addrs[:i], a); {
		case msg != "":
			v.fail(f, "%s", msg)
		case i >= MaxAddresses:
			v.fail(f, "%s is address %d: keep at most %d", a, i+1, MaxAddresses)
			return
		case at >= 0:
			v.fail(f, "%s is %s[%d], too: keep one", a, field, at)
		}
	}
}

// onePerFamily checks a node's addresses.
func (v *validator) onePerFamily(field string, addrs []netip.Addr) {
	first := map[bool]int{}
	for i, a := range addrs {
		f := fmt.Sprintf("%s[%d]", field, i)
		if msg := CheckAddr(a); msg != "" {
			v.fail(f, "%s", msg)
			continue
		}
		if j, ok := first[a.Is4()]; ok {
			v.fail(f, "%s is a second address of %s, after %s: keep one per family", a, family(a),
				addrs[j])
			continue
		}
		first[a.Is4()] = i
	}
}

func (v *validator) ranges(field string, ranges []netip.Prefix) {
	if len(ranges) > maxRanges {
		v.fail(field, "are %d ranges: want at most %d", len(ranges), maxRanges)
		return
	}
	for i, p := range ranges {
		f := fmt.Sprintf("%s[%d]", field, i)
		if msg := CheckRange(p); msg != "" {
			v.fail(f, "%s", msg)
			continue
		}
		for j, q := range ranges[:i] {
			if q.IsValid() && p.Overlaps(q) {
				v.fail(f, "%s overlaps %s[%d] %s: keep one", p, field, j, q)
				break
			}
		}
	}
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// CheckAddr says what is wrong with an address of a node or a pod, "" if nothing.
func CheckAddr(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "is empty: want an IP address, such as 10.0.0.1 or fd00::1"
	case a.Is4In6():
		return fmt.Sprintf("%s is an IPv4 address written as IPv6: write %s", a, a.Unmap())
	case a.Zone() != "":
		return fmt.Sprintf("%s has a zone: write the address without %%%s", a.WithZone(""),
			quote(a.Zone()))
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast(), isBroadcast(a):
		return fmt.Sprintf("%s is not the address of one machine on a network: want a unicast address that others can reach", a)
	}
	return ""
}

func isBroadcast(a netip.Addr) bool { return a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// CheckRange says what is wrong with a range of pod addresses, "" if nothing.
func CheckRange(p netip.Prefix) string {
	a := p.Addr()
	switch {
	case !p.IsValid():
		return "is empty: want an address range, such as 10.1.0.0/24 or fd00:1::/64"
	case a.Is4In6():
		return fmt.Sprintf("%s is an IPv4 range written as IPv6: write it as IPv4", p)
	case p != p.Masked():
		return fmt.Sprintf("%s has bits set after its first %d: write %s", p, p.Bits(), p.Masked())
	case p.Bits() == 0:
		return fmt.Sprintf("%s is every address there is: want a range, such as 10.1.0.0/24 or fd00:1::/64", p)
	}
	for _, bad := range notForPods {
		if p.Overlaps(bad) {
			return fmt.Sprintf("%s overlaps %s, which pods cannot have: want a unicast range, such as 10.1.0.0/24 or fd00:1::/64", p, bad)
		}
	}
	return ""
}

// notForPods are the ranges without addresses of single machines on a network.
var notForPods = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/127"),
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("ff00::/8"),
}

func checkMAC(s string) string {
	m, err := net.ParseMAC(s)
	switch {
	case err != nil || len(m) != 6:
		return quote(s) + " is not a MAC address: want six bytes, such as 02:57:45:46:54:01"
	case m[0]&1 != 0:
		return s + " is a multicast MAC address: want that of one interface"
	case m.String() == "00:00:00:00:00:00":
		return s + " is no MAC address: want that of one interface"
	}
	return ""
}

func sortedKeys(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
