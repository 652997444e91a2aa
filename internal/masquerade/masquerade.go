// Package masquerade gives packets that pods send to the world outside the network the
// node's own source address, with rules in an nftables table that belongs to Weft alone.
//
// The rules work on what the host's stack forwards. Packets that the datapath itself
// redirects go from pod to pod and never need them.
package masquerade

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Options says whose packets are masqueraded, and where.
type Options struct {
	// Instance is the agent's instance: each has a table of its own.
	Instance string
	// Uplinks are the interfaces that lead out of the node. What leaves by another one
	// (a bridge of another container network, a pod's interface) keeps its source.
	Uplinks []string
	// PodCIDRs are the ranges of this node's pods: only packets from them are changed.
	PodCIDRs []netip.Prefix
	// Except are the destinations that see pods' own addresses: the ranges of all nodes'
	// pods and whatever else knows the way back. PodCIDRs and multicast are always excepted.
	Except []netip.Prefix
}

// Equal tells whether both make the same rules. Nil, no masquerading, equals only nil.
func (o *Options) Equal(other *Options) bool {
	if o == nil || other == nil {
		return o == other
	}
	return o.Instance == other.Instance && slices.Equal(o.Uplinks, other.Uplinks) &&
		slices.Equal(o.PodCIDRs, other.PodCIDRs) && slices.Equal(o.Except, other.Except)
}

// TableName is the name of an instance's table (family inet).
func TableName(instance string) string {
	if instance == "" {
		return "weft"
	}
	return "weft-" + instance
}

// writeBuffer is room for the largest transaction: two addresses and two ranges of 4096 nodes.
const writeBuffer = 4 << 20

// Apply replaces the instance's rules in one transaction: at every moment either the old or the
// new ones hold. Connections that are under way keep the address that they have.
func Apply(options Options) error {
	plan, err := newPlan(options)
	if err != nil {
		return err
	}
	conn, err := open()
	if err != nil {
		return err
	}
	if err := plan.write(conn); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("set masquerading rules: %w%s", err, hint(err))
	}
	return nil
}

// Remove takes the instance's table away. It is not an error if there is none, or no
// nftables in the kernel.
func Remove(instance string) error {
	conn, err := open()
	if err != nil {
		return err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if unsupported(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	name := TableName(instance)
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name }) {
		return nil
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name})
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove masquerading rules: %w", err)
	}
	return nil
}

func open() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetWriteBuffer(writeBuffer) }))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return conn, nil
}

// unsupported tells a kernel without nf_tables (or without its inet family) from other failures.
func unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) ||
		errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

// hint says what to do about an error that the kernel's configuration explains.
func hint(err error) string {
	if unsupported(err) || errors.Is(err, unix.ENOENT) {
		return " (the kernel needs nf_tables with inet NAT and masquerade: CONFIG_NF_TABLES_INET, CONFIG_NFT_NAT, CONFIG_NFT_MASQ; or set masquerade.enabled to false)"
	}
	return ""
}
