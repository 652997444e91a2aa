package agent

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
)

// natTable is the nftables table (family inet) that holds all of Weft's rules.
const natTable = "weft"

// masquerade says whose addresses are hidden from whom.
type masquerade struct {
	// sources are this node's pods; inside are destinations that see the pods' own addresses.
	sources, inside []netip.Prefix
}

// wantedMasquerade is nil when the configuration wants none. Pods and nodes see each
// other's own addresses: they know the way back.
func wantedMasquerade(cfg *config.Config, own *v1alpha1.Node, nodes map[string]*v1alpha1.Node) *masquerade {
	if !cfg.Masquerade.Enabled {
		return nil
	}
	want := &masquerade{sources: own.Spec.PodCIDRs, inside: slices.Clone(cfg.Masquerade.Except)}
	if len(cfg.IPAM.Ranges) > 0 {
		want.sources = cfg.IPAM.Ranges
	}
	want.inside = append(want.inside, want.sources...)
	for _, node := range nodes {
		want.inside = append(want.inside, node.Spec.PodCIDRs...)
		for _, addr := range node.Spec.Addresses {
			want.inside = append(want.inside, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	want.inside = merge(want.inside)
	want.sources = merge(want.sources)
	return want
}

// merge sorts prefixes and leaves out those that another contains: a set of intervals may not overlap.
func merge(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, prefix := range prefixes {
		sorted = append(sorted, prefix.Masked())
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var merged []netip.Prefix
	for _, prefix := range sorted {
		if last := len(merged) - 1; last < 0 || !merged[last].Overlaps(prefix) {
			merged = append(merged, prefix)
		}
	}
	return merged
}

func (m *masquerade) equal(other *masquerade) bool {
	if m == nil || other == nil {
		return m == other
	}
	return slices.Equal(m.sources, other.sources) && slices.Equal(m.inside, other.inside)
}

// setMasquerade replaces Weft's table in one transaction; nil removes it.
func setMasquerade(want *masquerade) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: natTable}
	if want == nil && !hasTable(conn, table) {
		return nil
	}
	// Added first, so that deleting it is never an error.
	conn.AddTable(table)
	conn.DelTable(table)
	if want != nil {
		if err := addRules(conn, table, want); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("set masquerading rules: %w", err)
	}
	return nil
}

// hasTable says whether the table is there; where that cannot be read it is not.
func hasTable(conn *nftables.Conn, table *nftables.Table) bool {
	tables, err := conn.ListTablesOfFamily(table.Family)
	return err == nil && slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name })
}

// family is how one address family looks to nftables.
type family struct {
	name                string
	proto               byte
	kind                nftables.SetDatatype
	source, destination uint32 // offsets in the IP header
	length              uint32
}

var families = []family{
	{"4", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 12, 16, 4},
	{"6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 8, 24, 16},
}

func addRules(conn *nftables.Conn, table *nftables.Table, want *masquerade) error {
	table = conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	for _, f := range families {
		pods, err := addSet(conn, table, "pods"+f.name, f, want.sources)
		if err != nil {
			return err
		}
		inside, err := addSet(conn, table, "inside"+f.name, f, want.inside)
		if err != nil {
			return err
		}
		if pods == nil {
			continue
		}
		exprs := []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.length},
			&expr.Lookup{SourceRegister: 1, SetName: pods.Name, SetID: pods.ID},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: f.destination, Len: f.length},
			&expr.Lookup{SourceRegister: 1, SetName: inside.Name, SetID: inside.ID, Invert: true},
			&expr.Meta{Key: expr.MetaKeyOIFTYPE, Register: 1},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint16(unix.ARPHRD_LOOPBACK)},
			&expr.Counter{},
			&expr.Masq{},
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	return nil
}

// addSet makes an interval set of the family's prefixes, nil if there are none.
func addSet(conn *nftables.Conn, table *nftables.Table, name string, f family, prefixes []netip.Prefix) (*nftables.Set, error) {
	var elements []nftables.SetElement
	for _, prefix := range prefixes {
		if prefix.Addr().BitLen() != int(f.length)*8 {
			continue
		}
		elements = append(elements, nftables.SetElement{Key: prefix.Addr().AsSlice()})
		if end := after(prefix); end.IsValid() {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	if len(elements) == 0 {
		return nil, nil
	}
	set := &nftables.Set{Table: table, Name: name, KeyType: f.kind, Interval: true}
	if err := conn.AddSet(set, elements); err != nil {
		return nil, fmt.Errorf("make set %s: %w", name, err)
	}
	return set, nil
}

// after is the first address behind a prefix, invalid when there is none.
func after(prefix netip.Prefix) netip.Addr {
	last := prefix.Masked().Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 1 << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(last)
	return addr.Next()
}
