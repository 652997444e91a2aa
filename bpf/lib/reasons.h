/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_REASONS_H
#define WEFT_REASONS_H

/* Every way a packet can be refused. This list is the only one: the metrics' labels, the CLI's
 * text and docs/drop-reasons.md are generated from it. Add at the end: the numbers are ABI
 * between a running datapath and a newer agent.
 *
 * X(NAME, "what happened", "what to look at") */
#define WEFT_REASONS(X)                                                                                        \
	X(NONE, "not dropped", "")                                                                             \
	X(INTERNAL, "an invariant of the datapath did not hold", "report it with the output of weft sysdump")  \
	X(TRUNCATED, "a header reaches beyond the end of the frame", "the sender builds broken packets")       \
	X(BAD_IP_HEADER, "IP version, header length or total length is wrong",                                 \
	  "the sender builds broken packets")                                                                  \
	X(BAD_IP_CHECKSUM, "the IPv4 header checksum is wrong", "the sender or a link corrupts packets")       \
	X(BAD_L4_HEADER, "the TCP or UDP header contradicts itself", "the sender builds broken packets")       \
	X(SOURCE_ROUTE, "IPv4 source route option or IPv6 routing header type 0",                              \
	  "source routing is refused (RFC 7126, RFC 5095)")                                                    \
	X(EXTENSION_HEADERS, "the IPv6 extension header chain is too long",                                    \
	  "at most 6 headers and 320 bytes are followed")                                                      \
	X(ETHERTYPE, "neither IPv4, IPv6 nor ARP", "pods have IP networking only")                             \
	X(VLAN_TAGGED, "a pod sent a frame with a VLAN tag", "pods have no VLANs; send untagged")              \
	X(SPOOFED_MAC, "the source MAC address is not the endpoint's",                                         \
	  "something in the pod forges frames, or its MAC was changed")                                        \
	X(SPOOFED_IP, "the source IP address is not the endpoint's",                                           \
	  "something in the pod forges packets, or routes for others")                                         \
	X(SPOOFED_ARP, "an ARP packet claims an address that is not the endpoint's",                           \
	  "something in the pod forges ARP")                                                                   \
	X(SPOOFED_ND, "a neighbour discovery packet claims an address that is not the endpoint's",             \
	  "something in the pod forges ND")                                                                    \
	X(ARP_TARGET, "ARP for another address than the gateway",                                              \
	  "pods reach everything through the gateway; check the pod's routes")                                 \
	X(ND_TARGET, "neighbour solicitation for another address than the gateway",                            \
	  "pods reach everything through the gateway; check the pod's routes")                                 \
	X(MULTICAST, "multicast or broadcast from a pod", "the network carries unicast only")                  \
	X(LINK_LOCAL, "a link-local address where a routable one is needed", "bind to the pod's own address")  \
	X(UNKNOWN_INTERFACE, "the hook sits on an interface that no endpoint owns",                            \
	  "an endpoint is being removed, or the agent must restore it")                                        \
	X(NO_ENDPOINT, "the address is in this node's pod range but no endpoint has it",                       \
	  "the pod is gone or not there yet")                                                                  \
	X(FOREIGN_SOURCE, "a packet from the wire claims the address of a pod on this node",                   \
	  "somebody on the wire forges packets, or two nodes have the same pod range")                         \
	X(FRAGMENT_UNKNOWN, "a later fragment whose first fragment was not seen",                              \
	  "fragments were reordered or lost on the way")                                                       \
	X(FRAGMENT_OVERLAP, "a fragment overlaps the first one",                                               \
	  "an attack (RFC 1858, RFC 5722) or a broken sender")                                                 \
	X(FRAGMENT_TINY, "the first fragment ends inside the transport header",                                \
	  "an attack (RFC 1858) or a broken sender")                                                           \
	X(TTL_EXCEEDED, "the TTL or hop limit ran out",                                                        \
	  "a routing loop, or traceroute; the sender got an ICMP error")                                       \
	X(TOO_BIG, "larger than the path's MTU", "the sender got an ICMP error with the right MTU")            \
	X(ICMP_NO_FLOW, "an ICMP error that belongs to no known flow", "late, or forged")                      \
	X(ICMP_MISMATCH, "an ICMP error quotes a packet that did not travel between its two ends", "forged")   \
	X(MARTIAN, "a source address that no host can have on a wire", "forged, or a broken sender (RFC 6890)")

#define WEFT_REASON_ENUM(name, what, hint) REASON_##name,
enum weft_reason { WEFT_REASONS(WEFT_REASON_ENUM) REASON_COUNT };

#endif
