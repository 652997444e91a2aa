package identity

import (
	"cmp"
	"net/netip"
	"slices"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// Plain is what may travel in cleartext between nodes: the addresses of endpoints that an
// EncryptionPolicy selects or whose pod asks for it, and the ranges that policies name,
// without the addresses of pods that ask to be sealed and those that are remembered to have asked.
//
// In doubt a packet is sealed: a policy that is not valid is not in a snapshot, an
// annotation that is neither "true" nor "false" counts as "true", of several versions of a pod the
// one counts that asks, and an address that several endpoints have is plain if all of them may be.
func Plain(s *store.Snapshot, remembered []netip.Addr) []netip.Prefix {
	w := wishesOf(s)
	var plain []netip.Prefix
	for _, a := range w.plain {
		if !w.closed[a] {
			plain = append(plain, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	for _, policy := range s.EncryptionPolicies {
		plain = append(plain, policy.Spec.CIDRs...)
	}
	return without(normal(plain), append(w.sealed, remembered...))
}

// Asking are the addresses of pods that ask to be sealed, others those of endpoints that do not.
func Asking(s *store.Snapshot) (asking, others []netip.Addr) {
	w := wishesOf(s)
	return w.sealed, w.others
}

// wishes are addresses by what is asked for them.
type wishes struct {
	sealed, plain []netip.Addr
	others        []netip.Addr // of endpoints that do not ask to be sealed
	closed        map[netip.Addr]bool
}

func wishesOf(s *store.Snapshot) *wishes {
	w := &wishes{closed: map[netip.Addr]bool{}}
	doubled := w.unused(s)
	for key, ep := range s.Endpoints {
		wanted := wish(s, key, ep)
		if doubled[key] {
			wanted = wantsSealed
		}
		switch {
		case wanted == wantsSealed:
			w.sealed = append(w.sealed, ep.Spec.Addresses...)
			continue
		case wanted == wantsPlain || selected(s, ep):
			w.plain = append(w.plain, ep.Spec.Addresses...)
		default:
			for _, a := range ep.Spec.Addresses {
				w.closed[a] = true
			}
		}
		w.others = append(w.others, ep.Spec.Addresses...)
	}
	// A pod that is declared with an address, and not there yet, asks already.
	for _, pod := range s.Pods {
		if parse(pod.Metadata.Annotations) == wantsSealed {
			w.sealed = append(w.sealed, pod.Spec.Addresses...)
		}
	}
	return w
}

// unused hears what objects ask for of which there is no telling which version is meant. It returns
// the pods that ask to be sealed in one of theirs.
func (w *wishes) unused(s *store.Snapshot) map[string]bool {
	asking := map[string]bool{}
	for _, o := range s.Unused {
		if parse(o.Meta().Annotations) != wantsSealed {
			continue
		}
		switch o := o.(type) {
		case *v1alpha1.Pod:
			asking[o.Metadata.Key()] = true
			w.sealed = append(w.sealed, o.Spec.Addresses...)
		case *v1alpha1.Endpoint:
			w.sealed = append(w.sealed, o.Spec.Addresses...)
		}
	}
	return asking
}

// selected says whether any policy selects an endpoint.
func selected(s *store.Snapshot, ep *v1alpha1.Endpoint) bool {
	for _, policy := range s.EncryptionPolicies {
		if selects(policy, ep) {
			return true
		}
	}
	return false
}

func selects(policy *v1alpha1.EncryptionPolicy, ep *v1alpha1.Endpoint) bool {
	sel := policy.Spec.Selector
	if sel == nil {
		return false
	}
	own, ns := policy.Metadata.Namespace, ep.Metadata.Namespace
	if own != "" && own != ns || len(sel.Namespaces) > 0 && !slices.Contains(sel.Namespaces, ns) {
		return false
	}
	for key, value := range sel.MatchLabels {
		if have, ok := ep.Metadata.Labels[key]; !ok || have != value {
			return false
		}
	}
	return true
}

// wanted is what a pod's annotation asks for.
type wanted int

const (
	noWish wanted = iota
	wantsPlain
	wantsSealed
)

func parse(annotations map[string]string) wanted {
	value, there := annotations[v1alpha1.EncryptAnnotation]
	switch {
	case !there:
		return noWish
	case value == v1alpha1.EncryptFalse:
		return wantsPlain
	}
	return wantsSealed
}

// wish is what the pod's declaration asks for or, where there is none, what its endpoint was
// published with. Of the two one may be late: if either asks to be sealed, it is.
func wish(s *store.Snapshot, key string, ep *v1alpha1.Endpoint) wanted {
	published := parse(ep.Metadata.Annotations)
	pod := s.Pods[key]
	if pod == nil || published == wantsSealed {
		return published
	}
	return parse(pod.Metadata.Annotations)
}

// normal sorts prefixes and drops those inside others.
func normal(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, compare)
	var out []netip.Prefix
	for _, p := range prefixes {
		// What contains p begins at or before p and is not longer: it came just before.
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

func compare(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// without cuts single addresses out of prefixes, which are sorted and apart, and keeps them so.
func without(prefixes []netip.Prefix, holes []netip.Addr) []netip.Prefix {
	for _, hole := range holes {
		// The last one that begins at or before the hole is the only one that can hold it.
		at, found := slices.BinarySearchFunc(prefixes, hole,
			func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
		if !found {
			at--
		}
		if at < 0 || !prefixes[at].Contains(hole) {
			continue
		}
		rest := cut(prefixes[at], hole)
		slices.SortFunc(rest, compare)
		prefixes = slices.Replace(prefixes, at, at+1, rest...)
	}
	return prefixes
}

// cut is a prefix without one of its addresses: one prefix for each bit that tells them apart.
func cut(p netip.Prefix, hole netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for bits := p.Bits() + 1; bits <= hole.BitLen(); bits++ {
		out = append(out, sibling(hole, bits))
	}
	return out
}

// sibling is the prefix of that many bits that differs from addr's in the last of them.
func sibling(addr netip.Addr, bits int) netip.Prefix {
	raw := addr.AsSlice()
	raw[(bits-1)/8] ^= 0x80 >> ((bits - 1) % 8)
	other, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(other, bits).Masked()
}
