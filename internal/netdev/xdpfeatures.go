package netdev

import (
	"encoding/binary"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The part of the "netdev" generic netlink family that is needed (linux/netdev.h).
const (
	netdevCmdDevGet      = 1
	netdevAttrIfindex    = 1
	netdevAttrXDPFeature = 3
	xdpFeatureNdoXmit    = 1 << 2
)

// genlHeader is struct genlmsghdr: command, version and two reserved bytes. nl.Genlmsg leaves
// those two to chance, and the kernel refuses a request in which they are not 0.
type genlHeader [4]byte

func (h genlHeader) Len() int          { return len(h) }
func (h genlHeader) Serialize() []byte { return h[:] }

// TakesXDP tells whether a frame that an XDP program redirects to the interface would be sent
// (NETDEV_XDP_ACT_NDO_XMIT). For a veth that depends on the other end, so it can change.
func TakesXDP(ifindex int) bool {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return false
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(genlHeader{netdevCmdDevGet, 1})
	index := make([]byte, 4)
	binary.NativeEndian.PutUint32(index, uint32(ifindex))
	request.AddData(nl.NewRtAttr(netdevAttrIfindex, index))
	replies, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(replies) == 0 || len(replies[0]) < nl.SizeofGenlmsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(replies[0][nl.SizeofGenlmsg:])
	if err != nil {
		return false
	}
	for _, a := range attrs {
		if a.Attr.Type == netdevAttrXDPFeature && len(a.Value) >= 8 {
			return binary.NativeEndian.Uint64(a.Value)&xdpFeatureNdoXmit != 0
		}
	}
	return false
}
