/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_CONSTS_H
#define WEFT_CONSTS_H

/* Sizes that user space must agree with: MaxEndpoints, MaxAddresses and MaxNodeIndexes in Go, held
 * equal by a test. */
#define WEFT_MAX_ENDPOINTS 4096
#define WEFT_MAX_ADDRS	   16
#define WEFT_MAX_NODES	   4096
#define WEFT_MAX_ROUTES	   65536 /* the trie is not allocated beforehand */
#define WEFT_MAX_PLAIN	   16384
#define WEFT_MAX_POLICY                                                                            \
	1048576 /* entries of all sets; not allocated beforehand, nor are the next two */
#define WEFT_MAX_ADDR_IDS  1048576
#define WEFT_MAX_CLASSES   131072
#define WEFT_MAX_OWNERS	   (2 * WEFT_MAX_ENDPOINTS)
#define WEFT_MAX_FRAGMENTS (WEFT_MAX_OWNERS * WEFT_OWNER_FRAGMENTS)
#define WEFT_MAX_PEER_IDS  262144
#define WEFT_TRACE_STEPS   24

/* Who pays for a flow, a datagram in fragments, an event, an ICMP error: an endpoint for what it
 * began itself, and apart from that for what others began towards it. Slot 0 is the node. */
#define OWNER(slot, direction) ((slot) << 1 | (direction))
/* Datagrams in fragments at one time, per owner; and how long the rest of one is waited for (RFC
 * 8200 section 4.5 says 60 s, Linux 30). */
#define WEFT_OWNER_FRAGMENTS 128
/* Of which each other side has a set, told by a hash of its address: 8 sets. */
#define FRAGMENTS_OF_OTHER 16
#define TIMEOUT_FRAGMENT   (30 * NSEC_PER_SEC)
/* A datagram younger than this whose place another takes has been lost, not forgotten. */
#define FRAGMENT_YOUNG NSEC_PER_SEC

/* The network of the cluster: of its nodes, of the host's stack, and of pods that name none. */
#define NETWORK_CLUSTER 0

#define ETH_LEN 14
#define IP4_LEN 20
#define IP6_LEN 40

/* Longest IPv6 extension chain that is followed, and how far into a frame headers may reach.
 * RFC 8504 section 5.3 lets a node bound both; a longer chain is dropped with a reason of its own.
 */
#define MAX_EXT_HEADERS 6
#define MAX_HEADERS	320

/* How much of a TC frame is made linear when its linear part was too short: the longest headers
 * and a whole TCP header, with options, behind them. */
#define PULL_LEN (MAX_HEADERS + 60)

/* How many VLAN tags with VLAN ID 0 (IEEE 802.1Q priority tags) are taken off a frame. */
#define MAX_PRIORITY_TAGS 2

/* Reserved identities travel through the host's stack as themselves, a workload's as an index into
 * weft_handles from here on. Space for 14 bits, see provenance.h. */
#define FIRST_HANDLE	 256
#define WEFT_MAX_HANDLES 16384

/* Marks four bytes of XDP metadata as a tag of ours. */
#define META_MAGIC 0x5745

#define NSEC_PER_SEC 1000000000ULL

/* Idle times after which a flow is forgotten, in nanoseconds (RFC 5382, 4787 and 5508 give
 * the floors for translators; a router may be shorter, none of these is). */
#define TIMEOUT_TCP_SYN	    (60 * NSEC_PER_SEC)
#define TIMEOUT_TCP_OPEN    (7440 * NSEC_PER_SEC)
#define TIMEOUT_TCP_CLOSED  (30 * NSEC_PER_SEC)
#define TIMEOUT_UDP_ONE_WAY (60 * NSEC_PER_SEC)
#define TIMEOUT_UDP	    (300 * NSEC_PER_SEC)
#define TIMEOUT_OTHER	    (60 * NSEC_PER_SEC)
/* A flow idle for longer is looked at by the slow path, which knows the state's own limit. */
#define TIMEOUT_FAST (25 * NSEC_PER_SEC)

/* The reader of events is woken by the first, and then not again for so many nanoseconds: until
 * they and a tick of the kernel's have passed, it looks by itself (eventsLinger in Go). */
#define EVENTS_QUIET 5000000ULL

/* ICMP errors per second and CPU (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 f), and what of
 * them each owner has for itself. */
#define ICMP_ERRORS_PER_SEC 1000
#define ICMP_ERRORS_SHARE   100

#endif
