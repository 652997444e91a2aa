package sealer

// cutter cuts a packet into segments as Linux's own segmentation does (tcp_gso_segment,
// __udp_gso_segment), without a copy: each header is written over the end of the segment before,
// which by then has been sealed.
type cutter struct {
	p      []byte // from the inner IP header; more than n bytes
	n      int    // length of the packet
	th     int    // where its transport header is
	hl     int    // length of all its headers
	size   int    // payload of each segment but the last
	count  int
	check  int // where the transport's checksum is, from th
	tcp    bool
	noSum  bool   // UDP that came without a checksum
	id     uint16 // IPv4
	seq    uint32 // TCP
	flags  uint8  // TCP
	ipSum  uint64 // of the IPv4 header, without what changes
	sum    uint64 // of pseudo-header and transport header, without what changes
	header [maxHeaders]byte
}

const (
	maxHeaders = 40 + 256 + 60 // IPv6 with extension headers, TCP
	tcpMin     = 20

	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10
	tcpURG = 0x20
	tcpECE = 0x40
	tcpCWR = 0x80
)

// begin looks at a packet. It says false for what cannot be cut or finished.
func (c *cutter) begin(p []byte, n int, v vnet) bool {
	c.p, c.n, c.count = p, n, 1
	if v.gso == gsoNone {
		c.hl, c.size = 0, n
		return !v.unfinished || finish(p[:n], v.start-etherLen, v.offset)
	}
	return c.headers(v) && c.sums(v)
}

// finish writes a checksum that the pod's stack has left to its device.
func finish(p []byte, start, offset int) bool {
	if start < ip4Len || start+offset+2 > len(p) {
		return false
	}
	s := ^fold(sum(p[start:], 0))
	if s == 0 {
		s = 0xffff
	}
	ne.PutUint16(p[start+offset:], s)
	return true
}

// headers finds the transport header.
func (c *cutter) headers(v vnet) bool {
	ip4 := c.p[0]>>4 == 4
	c.tcp, c.check = v.gso != gsoUDP, 16
	protocol := uint8(protoTCP)
	switch {
	case v.gso == gsoUDP:
		c.check, protocol = 6, protoUDP
	case v.gso == gsoTCP4 && !ip4, v.gso == gsoTCP6 && ip4, v.gso != gsoTCP4 && v.gso != gsoTCP6:
		return false
	}
	c.th = ip6Len
	if ip4 {
		c.th = int(c.p[0]&15) * 4
		if c.p[9] != protocol || v.unfinished && v.start != etherLen+c.th {
			return false
		}
	} else if v.unfinished && v.start > etherLen+ip6Len {
		c.th = v.start - etherLen // behind extension headers
	} else if c.p[6] != protocol || v.unfinished && v.start != etherLen+ip6Len {
		return false
	}
	if v.unfinished && v.offset != c.check {
		return false
	}
	return c.sizes(v)
}

// sizes finds out where the payload is and how many segments it makes.
func (c *cutter) sizes(v vnet) bool {
	c.hl = c.th + udpLen
	if c.tcp {
		if c.th+tcpMin > c.n {
			return false
		}
		length := int(c.p[c.th+12]>>4) * 4
		if length < tcpMin {
			return false
		}
		c.hl = c.th + length
	}
	if v.size == 0 || c.hl >= c.n || c.hl > maxHeaders {
		return false
	}
	c.size = v.size
	c.count = (c.n - c.hl + c.size - 1) / c.size
	return c.hl+min(c.size, c.n-c.hl) <= maxIP
}

// sums keeps the headers, and adds up what is the same in every segment.
func (c *cutter) sums(v vnet) bool {
	h := c.header[:c.hl]
	copy(h, c.p)
	if h[0]>>4 == 4 {
		c.id = be.Uint16(h[4:])
		clear(h[2:6])
		clear(h[10:12])
		c.ipSum = sum(h[:c.th], 0)
	}
	t := h[c.th:]
	field := uint64(ne.Uint16(t[c.check:]))
	switch {
	case v.unfinished: // the pseudo-header's sum with the whole length, which is taken off
		c.sum = field + uint64(^uint16(word(uint16(c.n-c.th))))
	case c.tcp:
		c.sum = pseudo(h, protoTCP, 0)
	default:
		c.sum = pseudo(h, protoUDP, 0)
	}
	c.noSum = !c.tcp && !v.unfinished && field == 0
	clear(t[c.check : c.check+2])
	if c.tcp {
		c.seq, c.flags = be.Uint32(t[4:]), t[13]
		clear(t[4:8])
		t[13] = 0
	} else {
		clear(t[4:6])
	}
	c.sum = uint64(fold(sum(t, c.sum)))
	return true
}

// segment puts segment i in order, once those before it are done with: it is p[at:at+length].
func (c *cutter) segment(i int) (at, length int) {
	if c.hl == 0 {
		return 0, c.n
	}
	payload := c.hl + i*c.size
	m := min(c.size, c.n-payload)
	at, length = payload-c.hl, c.hl+m
	q := c.p[at : at+length]
	copy(q, c.header[:c.hl])
	if q[0]>>4 == 4 {
		id := c.id + uint16(i)
		be.PutUint16(q[2:], uint16(length))
		be.PutUint16(q[4:], id)
		ne.PutUint16(q[10:], ^fold(c.ipSum+word(uint16(length))+word(id)))
	} else {
		be.PutUint16(q[4:], uint16(length-ip6Len))
	}
	c.transport(q, i, m)
	return at, length
}

// transport writes what differs in the transport header, and its checksum.
func (c *cutter) transport(q []byte, i, m int) {
	t := q[c.th:]
	s := c.sum + word(uint16(c.hl-c.th+m))
	if c.tcp {
		be.PutUint32(t[4:], c.seq+uint32(i*c.size))
		flags := c.flags
		if i < c.count-1 {
			flags &^= tcpFIN | tcpPSH
		}
		if i > 0 {
			flags &^= tcpCWR
		}
		t[13] = flags
		s += uint64(ne.Uint32(t[4:])) + word(uint16(flags))
	} else {
		be.PutUint16(t[4:], uint16(udpLen+m))
		s += word(uint16(udpLen + m))
	}
	if c.noSum {
		return
	}
	check := ^fold(sum(t[c.hl-c.th:], s))
	if check == 0 && !c.tcp {
		check = 0xffff
	}
	ne.PutUint16(t[c.check:], check)
}
