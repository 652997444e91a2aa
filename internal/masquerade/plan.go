package masquerade

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// family is how one address family looks to nftables.
type family struct {
	suffix              string
	proto               byte
	kind                nftables.SetDatatype
	source, destination uint32 // offsets in the IP header
	bytes               uint32
}

var families = []family{
	{"4", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 12, 16, 4},
	{"6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 8, 24, 16},
}

// never lists the destinations that no source address may be changed for.
var never = []netip.Prefix{
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("ff00::/8"),
}

// chainName is the name of the chain in an instance's table.
const chainName = "postrouting"

// plan is the wanted table, before it becomes netlink messages.
type plan struct {
	table   string
	uplinks []string
	rules   []rule
}

// rule is one family's: from pods to anywhere but inside, out of an uplink.
type rule struct {
	family
	pods, inside []addrRange
}

// newPlan checks the options and works out the rules. A family without pods gets none.
func newPlan(options Options) (*plan, error) {
	if len(options.Uplinks) == 0 {
		return nil, errors.New("masquerade: no uplinks are known, so nothing can be told to be outside: set uplinks in the agent's configuration")
	}
	p := &plan{table: TableName(options.Instance),
		uplinks: slices.Compact(slices.Sorted(slices.Values(options.Uplinks)))}
	for _, name := range p.uplinks {
		if name == "" || len(name) >= unix.IFNAMSIZ {
			return nil, fmt.Errorf("masquerade: %q is not the name of an interface: correct uplinks in the agent's configuration", name)
		}
	}
	for _, f := range families {
		pods := merge(f.only(options.PodCIDRs))
		if len(pods) == 0 {
			continue
		}
		p.rules = append(p.rules,
			rule{f, pods, merge(f.only(options.PodCIDRs, options.Except, never))})
	}
	return p, nil
}

// only picks the family's prefixes.
func (f family) only(lists ...[]netip.Prefix) []netip.Prefix {
	var own []netip.Prefix
	for _, prefix := range slices.Concat(lists...) {
		if prefix.Addr().BitLen() == int(f.bytes)*8 {
			own = append(own, prefix)
		}
	}
	return own
}

// write puts the transaction together. The table is added before it is deleted, so
// that deleting it is never an error.
func (p *plan) write(conn *nftables.Conn) error {
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: p.table}
	conn.AddTable(table)
	conn.DelTable(table)
	table = conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: chainName, Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	// The byte order changes nothing but how `nft list` prints the names.
	uplinks := &nftables.Set{Table: table, Name: "uplinks", KeyType: nftables.TypeIFName,
		KeyByteOrder: binaryutil.NativeEndian}
	if err := addSet(conn, uplinks, nameElements(p.uplinks)); err != nil {
		return err
	}
	for _, r := range p.rules {
		pods := &nftables.Set{Table: table, Name: "pods" + r.suffix, KeyType: r.kind,
			Interval: true}
		inside := &nftables.Set{Table: table, Name: "inside" + r.suffix, KeyType: r.kind,
			Interval: true}
		if err := errors.Join(addSet(conn, pods, rangeElements(r.pods)),
			addSet(conn, inside, rangeElements(r.inside))); err != nil {
			return err
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain,
			Exprs: r.expressions(uplinks, pods, inside)})
	}
	return nil
}

// expressions is `meta nfproto F ip saddr @pods ip daddr != @inside oifname @uplinks counter
// masquerade`.
func (r rule) expressions(uplinks, pods, inside *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{r.proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: r.source,
			Len: r.bytes},
		&expr.Lookup{SourceRegister: 1, SetName: pods.Name, SetID: pods.ID},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: r.destination,
			Len: r.bytes},
		&expr.Lookup{SourceRegister: 1, SetName: inside.Name, SetID: inside.ID, Invert: true},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, SetName: uplinks.Name, SetID: uplinks.ID},
		&expr.Counter{},
		&expr.Masq{},
	}
}

// elementsPerMessage keeps one message's list of elements below the 64 KiB of a netlink attribute.
const elementsPerMessage = 1000

func addSet(conn *nftables.Conn, set *nftables.Set, elements []nftables.SetElement) error {
	first := min(len(elements), elementsPerMessage)
	if err := conn.AddSet(set, elements[:first]); err != nil {
		return fmt.Errorf("make set %s: %w", set.Name, err)
	}
	for more := range slices.Chunk(elements[first:], elementsPerMessage) {
		if err := conn.SetAddElements(set, more); err != nil {
			return fmt.Errorf("fill set %s: %w", set.Name, err)
		}
	}
	return nil
}

func nameElements(names []string) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, name := range names {
		key := make([]byte, unix.IFNAMSIZ)
		copy(key, name)
		elements = append(elements, nftables.SetElement{Key: key})
	}
	return elements
}

// rangeElements marks where each range begins and the address behind it, which
// a range that ends with the last address of all does not have.
func rangeElements(ranges []addrRange) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, r := range ranges {
		elements = append(elements, nftables.SetElement{Key: r.first.AsSlice()})
		if behind := r.last.Next(); behind.IsValid() {
			elements = append(elements,
				nftables.SetElement{Key: behind.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}
