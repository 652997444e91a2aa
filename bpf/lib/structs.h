/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_STRUCTS_H
#define WEFT_STRUCTS_H

#include <linux/types.h>
#include "consts.h"
#include "reasons.h"

enum weft_hook {
	HOOK_FROM_POD,
	HOOK_FROM_WIRE,
	HOOK_TO_POD,
	HOOK_TO_WIRE,
	HOOK_FROM_SEGMENT,
	HOOK_POST_ROUTING,
	HOOK_PRE_ROUTING,
	HOOK_FROM_SEALER,
	HOOK_TO_SEALER,
	HOOK_LOCAL_IN,
};

/* What skb->tc_index says of a packet in the host's stack, see provenance.h: 2 bits of kind, 14 of
 * value. */
enum weft_tag {
	TAG_NONE = 0 << 14,
	TAG_ENDPOINT = 1 << 14, /* sent by the endpoint in the slot of the value, past from_pod */
	TAG_OPENED =
	    2 << 14, /* opened by from_wire; the value is the handle of the sender's identity */
	TAG_ROUTED =
	    3 << 14, /* routed by a from_* hook, sealed if need be: not to be looked at again */
	/* Of an endpoint's: the conversation is one that the other end began, and from_pod has
	   judged it. */
	TAG_REPLY = 1 << 12,
};
#define TAG_KIND(tag)  ((tag) & 0xc000)
#define TAG_VALUE(tag) ((tag) & 0x3fff)
#define TAG_SLOT(tag)  ((tag) & 0xfff)

/* What happened to a packet. At most 8: the counters' index has three bits for it. */
enum weft_verdict {
	VERDICT_LOCAL,	  /* redirected to an endpoint on this node */
	VERDICT_REMOTE,	  /* redirected to the uplink, towards a peer node */
	VERDICT_STACK,	  /* given to the host's stack */
	VERDICT_ANSWERED, /* the hook replied in the gateway's place */
	VERDICT_ABSORBED, /* link-local chatter that ends here on purpose */
	VERDICT_DROP,	  /* refused, see the reason */
};

enum weft_direction { DIR_EGRESS, DIR_INGRESS };

/* An IPv6 address, or an IPv4 one as ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2). */
union weft_addr {
	__u8 b[16];
	__be32 w[4];
	__u64 d[2];
};

enum weft_config_flag {
	CONFIG_STACK = 1 << 0, /* mode stack: every allowed packet takes the host's stack */
	CONFIG_SEAL = 1 << 1,  /* strict: what crosses between nodes for a pod is sealed, unless a
				  policy names it */
	CONFIG_NETWORKS = 1 << 2,    /* there are endpoints of other networks than the cluster's */
	CONFIG_POLICY = 1 << 3,	     /* there are endpoints with a policy set */
	CONFIG_NO_CLASSES = 1 << 4,  /* no address has a class */
	CONFIG_MARKED_SETS = 1 << 5, /* all sets' numbers are to be believed (weft_policy_set) */
};

/* The node's settings, one entry. The agent bumps generation after any change of the
 * maps below that could change a forwarding decision; cached decisions of older
 * generations are made again. Never 0. */
struct weft_config {
	__u32 generation;
	__u32 flags;
	__u32 events_per_sec; /* per CPU */
	__be32 node_ip4;      /* source of ICMP errors; 0: none */
	union weft_addr node_ip6;
	__be32 gateway_ip4;
	__be16 esp_port;
	__u16 pad;
	union weft_addr gateway_ip6;
	__u32 segment_ifindex; /* weft_host: what goes in is cut to packets, and comes out at
				  from_segment */
	__u32 net_ifindex;     /* weft_net, the other end */
	__u32 flow_entries;    /* the flow table's size, per family */
	__u32 flow_share;      /* an owner with at most so many flows never loses one to another */
	__u32 events_share;    /* what of events_per_sec each owner has for itself */
	__u32 netns;	       /* inode of this network namespace: whose sockets are this host's */
	__u32 sealer_ifindex; /* weft_sealer, the tap that the sealer is behind; 0: there is none */
	/* CLOCK_MONOTONIC, seconds: until then either end may have begun a TCP connection that the
	 * flow table does not know, because an upgrade has emptied that; 0: never. */
	__u32 either_until;
};

enum weft_endpoint_flag {
	ENDPOINT_CHAINED = 1 << 0, /* another plugin's interface: its bridge handles ARP and ND */
	ENDPOINT_XDP_OUT = 1 << 1, /* an XDP redirect into its interface is delivered */
};

/* An address, in one of the networks whose addresses mean different machines. */
struct weft_addr_key {
	__u32 network; /* NETWORK_CLUSTER, or another; 24 bits */
	__u32 pad;
	union weft_addr addr;
};

/* An endpoint, by the index of every host-side interface that its packets may come
 * from, and by each of its addresses. */
struct weft_endpoint {
	__u32 ifindex; /* the interface that delivers to the pod */
	__u16 slot;
	__u16 mtu; /* largest IP packet, bytes; 0: no limit but the interface's */
	__u32 flags;
	__u8 mac[6];
	__u8 gateway_mac[6];
	__u32 network; /* the only one in which its packets are looked up */
	__u32 identity;
	/* At random, so that it differs between two endpoints that have the same address, slot or
	 * interface one after the other. Never 0. */
	__u32 born;
};

/* The first link-local address that an endpoint claimed, and which endpoint that was: its number, 0
 * for none.
 */
struct weft_claim {
	union weft_addr addr;
	__u32 born;
	__u32 pad;
};

/* An endpoint by its slot, for packets in the host's stack, whose addresses may have been
 * translated. */
struct weft_ep_slot {
	__u32 identity;
	__u32 bridge; /* the interface by which the stack gets a chained pod's packets, 0 if that is
			 its own */
	/* The policy sets of what it begins and of what others begin towards it, by direction; 0:
	 * none, all is allowed. In one aligned word of 8 bytes, which the kernel copies at once. */
	__u32 sets[2];
};

/* What a policy set says of a peer, a protocol and a port: the longest match counts. A rule for any
 * protocol ends before protocol, one for any port before port, one for a range is several of its
 * prefixes. */
struct weft_policy_key {
	__u32 prefixlen; /* POLICY_KEY_PEER and what of the protocol and the port counts */
	__u32 set;
	__u32 peer; /* an identity, an address class, PEER_UNAUTHENTICATED, or 0: anybody */
	__u8 direction;
	__u8 protocol;
	__be16 port; /* the responder's */
};
/* Whoever has not proven who it is: of entries with this peer, those count too that are about such
 * a packet. Above all identities (22 bits), and below all address classes. */
#define PEER_UNAUTHENTICATED (1U << 22)
#define POLICY_KEY_PEER	     (32 + 32 + 8)
#define POLICY_KEY_BITS	     (POLICY_KEY_PEER + 8 + 16)

/* What a set's number says of it besides, so that no look-up is made in vain. A build that knows
 * nothing of it may have numbered on from such a set: see CONFIG_MARKED_SETS. */
enum weft_policy_set {
	POLICY_SET_NO_ANYBODY = 1 << 30, /* no entry is about anybody */
};

enum weft_policy_verdict { POLICY_DENY, POLICY_ALLOW };

struct weft_policy_entry {
	__u32 precedence; /* the higher wins; of equal ones deny does */
	__u32 rule;	  /* which one it is, for explanations; 0: none */
	__u8 verdict;
	__u8 pad[3];
};

struct weft_route_key {
	__u32 prefixlen; /* of the 32 bits of the network and the 128 behind them; an IPv4 /n is
			    128+n */
	__u32 network;
	__u8 addr[16]; /* bytes, not weft_addr: the trie wants them right behind prefixlen */
};

/* The keys of a judgement's look-ups, and what an ICMP error has itself while p is what it quotes:
 * too large for the stack. */
struct weft_judgement {
	struct weft_policy_key entry;
	struct weft_route_key range;
	struct weft_addr_key addr;
	union weft_addr src, dst;
	__u8 proto;
	__u8 pad[7];
};

enum weft_route_flag {
	ROUTE_HOST = 1 << 0, /* a node's own address: only what pods send there is sealed */
	/* A range or an address of the cluster whose node is not known: its object is missing or
	 * broken. Nothing goes there and nothing comes from there. node is 0. */
	ROUTE_NO_NODE = 1 << 1,
	/* One of this node's own ranges in which addresses without an endpoint may be somebody
	 * else's on this node: the stack decides about what goes there. From the wire, nothing
	 * comes from there all the same.
	 */
	ROUTE_OPEN = 1 << 2,
	ROUTE_UNLISTED = 1 << 3, /* an address that this node has and its Node object does not */
};

/* Where a pod range lives: an index into weft_nexthops for either family. Node 0 is this node, its
 * addresses (ROUTE_HOST) included. */
struct weft_route {
	__u32 node;
	__u32 flags;
};

enum weft_nexthop_flag {
	NEXTHOP_RESOLVED = 1 << 0, /* dmac and smac are current */
	NEXTHOP_XDP_OUT = 1 << 1,  /* the uplink takes XDP redirects */
};

/* A peer node's next hop for one address family: index 2*node (IPv4), 2*node+1 (IPv6). */
struct weft_nexthop {
	__u32 ifindex;
	__u16 flags;
	__u16 mtu;
	__u8 dmac[6];
	__u8 smac[6];
};

enum weft_step {
	STEP_PARSED,	/* a: family, b: protocol, c: sport<<16|dport */
	STEP_MALFORMED, /* a: reason */
	STEP_ENDPOINT,	/* a: slot, b: ifindex */
	STEP_SPOOF_OK,
	STEP_FLOW_HIT,	  /* a: state, b: flags */
	STEP_FLOW_NEW,	  /* a: 1 if it must take the stack */
	STEP_CACHE_HIT,	  /* a: verdict */
	STEP_TO_LOCAL,	  /* a: slot, b: ifindex */
	STEP_TO_NODE,	  /* a: node, b: ifindex */
	STEP_NO_NEIGHBOR, /* a: node */
	STEP_NO_ROUTE,
	STEP_MTU,     /* a: size, b: limit */
	STEP_TTL,     /* a: TTL before */
	STEP_VERDICT, /* a: verdict, b: reason, c: ifindex */
	STEP_SEAL,    /* a: node, b: epoch (1 to 15, as in the SPI), c: identity */
	STEP_POLICY,  /* a: direction, b: the peer's identity, c: rule<<1 | allowed */
};

struct weft_trace_step {
	__u8 step;
	__u8 hook;
	__u16 pad;
	__u32 a, b, c;
};

struct weft_trace {
	__u32 n;
	__u32 pad;
	struct weft_trace_step steps[WEFT_TRACE_STEPS];
};

enum weft_fragment { FRAG_NONE, FRAG_FIRST, FRAG_LATER };

/* What the parser found out about a frame. Lives on the stack of one program run. */
struct weft_pkt {
	union weft_addr src, dst;
	__be16 sport,
	    dport;     /* ICMP queries: both the identifier, so that both directions share a key */
	__u32 len;     /* the frame, bytes */
	__u32 packets; /* packets that a GSO frame stands for */
	__u32 l3_size; /* largest IP packet in it, bytes */
	__u32 ifindex;
	__u16 l4;	/* offset of the transport header */
	__u16 frag_off; /* bytes */
	__u16 frag_len; /* payload of this fragment, bytes */
	__be16 ethertype;
	__be32 frag_id;
	__u8 family;
	__u8 proto;
	__u8 tcp_flags;
	__u8 ttl;
	__u8 frag;
	__u8 icmp_type;
	__u8 hook;
	__u8 slow;  /* has options, extension headers, is a fragment or an ICMP message that is no
		       query */
	__u8 error; /* is an ICMP error */
	__u8 tagged;
	__u8 direction;	 /* seen from the local endpoint in slot */
	__u8 frag_proto; /* what the IP or fragment header says follows: every fragment says the
			    same */
	__u16 slot;
	/* Which node sealed the packet around it, and as whom; 0: it came in cleartext. With
	 * CTX_SEAL: for which node it is to be sealed, and as whom. */
	__u16 node;
	__u32 identity;
	__u32 network;	  /* whose addresses these are: the sending pod's, else the cluster's */
	__u32 generation; /* of the configuration before the first look-up: what a decision may
			     vouch for */
	__u32 sender;	  /* the source's identity, where more than its address tells; else 0 */
	__u32 rule;	  /* the policy rule that refused it; 0: none */
	__u8 reply;	  /* the other end began the conversation */
	__u8 answers;	  /* connection tracking knows what it answers: that left the stack */
	__u8 unconfirmed; /* with its addresses of now its sender's policy refuses it */
	__u8 local;	  /* the stack delivers it to this host, whatever its address */
};

/* Who a node says that it speaks for. */
struct weft_peer_id {
	__u32 node;
	__u32 identity;
};

/* Identities that are not a workload's: v1alpha1.Identity… in Go, held equal by a test. On the wire
 * only IDENTITY_HOST and IDENTITY_WORLD of them occur; what a peer sealed as its host is from
 * IDENTITY_REMOTE_HOST here. */
enum weft_identity {
	IDENTITY_UNKNOWN,
	IDENTITY_HOST,	      /* this node's own processes and kernel */
	IDENTITY_REMOTE_HOST, /* another node's */
	IDENTITY_WORLD,	      /* whoever is outside, relayed by a node's host */
	IDENTITY_HEALTH,      /* reserved: health probes */
	IDENTITY_UNMANAGED,   /* reserved: pods of this cluster that Weft does not attach */
};

/* The Ethernet addresses of a frame on its way from weft_host to from_segment: nobody but the two
 * hooks reads them, and they say what has been decided. */
struct weft_segment_header {
	__u8 magic[4]; /* SEGMENT_SEAL or SEGMENT_OPEN, locally administered unicast addresses */
	__be16 node;
	__be16 zero;
	__be32 identity;
	__be16 ethertype;
} __attribute__((packed));
/* 02:57:45:46: to be sealed for the node */
#define SEGMENT_SEAL bpf_htonl(0x02574546)
/* 02:57:45:4f: ESP from the node, to be opened */
#define SEGMENT_OPEN bpf_htonl(0x0257454f)

#endif
