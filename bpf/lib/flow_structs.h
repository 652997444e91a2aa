/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_FLOW_STRUCTS_H
#define WEFT_FLOW_STRUCTS_H

/* What the programs note of traffic: flows, their budgets, fragments, counters and events. */

#include "structs.h"

/* A flow's two ends, in order, and what they speak. The network is in three bytes, the lowest
 * first. */
struct weft_key4 {
	__be32 a, b;
	__be16 pa, pb;
	__u8 proto;
	__u8 network[3];
};

struct weft_key6 {
	union weft_addr a, b;
	__be16 pa, pb;
	__u8 proto;
	__u8 network[3];
};

/* A forwarding decision, cached in its flow: valid while generation is the
 * configuration's. It was made for frames from in_ifindex whose source MAC is in_mac, so a hit
 * needs no further anti-spoof check. digest is of the flow's key and of all the rest: the table may
 * hand the entry to another flow between look-up and use, and two CPUs may write at once. */
struct weft_cached {
	__u32 generation;
	__u32 digest;
	__u32 in_ifindex;
	__u32 out_ifindex;
	__u16 in_mac[3];
	__u16 mtu;
	__u8 dmac[6];
	__u8 smac[6];
	__u16 src_slot, dst_slot;
	__u8 verdict;
	__u8 flags;
	/* Of what goes out: whom it is sealed for, and as whom. Of what came in: who
	 * sealed it, 0 if nobody did; a hit needs the same again. */
	__u16 node;
	__u32 identity;
} __attribute__((aligned(8))); /* copied in words of 8 bytes */

enum weft_cached_flag {
	CACHED_SEAL = 1 << 0,
	CACHED_REPLY = 1 << 1, /* the other end began the flow */
};

enum weft_flow_flag {
	FLOW_VIA_STACK =
	    1 << 0, /* the stack routes it (it may translate addresses): hooks must not shortcut */
	FLOW_FIN_0 = 1 << 1, /* direction 0 sent FIN */
	FLOW_FIN_1 = 1 << 2,
	FLOW_ENDED = 1 << 3,  /* its end was reported */
	FLOW_SEEN_0 = 1 << 4, /* a from_* hook counts direction 0, so to_* hooks must not */
	FLOW_SEEN_1 = 1 << 5,
	FLOW_FIRST_IS_1 = 1 << 6, /* direction 1 is that of who began it */
	/* Who began it may only if the stack translates what it sends: nobody here knows that this
	   has left. */
	FLOW_UNCONFIRMED = 1 << 7,
};

enum weft_flow_state {
	STATE_NEW,     /* one direction only (UDP, ICMP, other) */
	STATE_REPLIED, /* both directions seen */
	STATE_SYN_SENT,
	STATE_SYN_RECEIVED,
	STATE_ESTABLISHED,
	STATE_CLOSING, /* one FIN */
	STATE_CLOSED,  /* both FINs, or RST */
};

struct weft_half {
	struct weft_cached cached;
	__u64 packets;
	__u64 bytes;
};

/* One conversation. Direction 0 goes from the key's a to its b. */
struct weft_flow {
	struct weft_half half[2];
	__u64 first_ns; /* CLOCK_MONOTONIC, coarse */
	__u64 last_ns;
	__u32 flags; /* changed by flow_flag only */
	__u8 state;
	__u8 pad;
	__u16 slot; /* the endpoint that the first packet was counted for */
	__u8 hook;
	__u8 direction;
	__u16 segment_tick; /* when something of it went to be cut, see segment.h */
	__u32 cell;	    /* its place in weft_cells4/6, which its owner pays for */
	__u32 checked;	    /* the generation in which born was last found true */
	__u32 born[2]; /* which endpoint had the key's a, and its b, when the flow was made; 0: none
			*/
	__u16 run_tick; /* segment.h's tick in which the run began */
	__u16 run;	/* packets of one direction since, with none of the other between */
	__u8 run_direction;
	__u8 pad2[3];
	__u32 initiator; /* the identity of who began it, when that was last judged; 0: nobody knows
			  */
};

/* A place in the flow table. Every flow has one, and whoever holds it is charged for it, so that
 * what an owner holds is known exactly whatever happens to the flow. The word is changed by
 * compare-and-exchange only. */
struct weft_cell {
	__u64 word; /* CELL_* */
	union {
		struct weft_key4 key4;
		struct weft_key6 key6;
	};
};

/* The search for a cell for a new flow; each CPU goes on where it found the last free one. */
struct weft_search {
	__u32 hand4, hand6;
	__u32 family;
	__u32 entries;
	__u32 share;
	__u32 owner;
	__u32 holds; /* of the owner */
	__u32 hand;
	__u32 best; /* CELL_NONE: none so far */
	__u32 best_holds;
	__u32 own; /* flows of the owner that were weighed */
	__u64 best_last;
	__u64 best_word;
};

/* What one owner holds of the shared tables, and what its budget refused. Index: OWNER(slot,
 * direction). */
struct weft_owner {
	__u32 flows[2];		 /* IPv4, IPv6 */
	__u64 flows_evicted;	 /* its flows that gave way to new ones before their time */
	__u64 flows_refused;	 /* flows of its that were not remembered */
	__u64 fragments_evicted; /* datagrams forgotten before their fragments can have come */
	__u64 events_suppressed;
	__u64 errors_suppressed; /* ICMP errors */
};

struct weft_frag_id {
	union weft_addr src, dst;
	__be32 id;
	__u8 proto;
	__u8 pad[3];
};

/* An owner has WEFT_OWNER_FRAGMENTS places (frag_place). */
struct weft_frag_key {
	__u16 owner;
	__u16 place;
};

/* What the first fragment of a datagram said, for those that follow. */
struct weft_frag {
	struct weft_frag_id id;
	__u64 time_ns;
	__be16 sport, dport;
	__u16 first_end; /* where the first fragment's payload ended, bytes */
	__u8 proto; /* the transport protocol: IPv6 may have options between it and the fragment
		       header */
	__u8 pad;
};

struct weft_counter {
	__u64 packets;
	__u64 bytes;
};

struct weft_drop_key {
	__u16 slot;
	__u8 direction;
	__u8 reason;
};

enum weft_event_type { EVENT_NEW, EVENT_END, EVENT_DROP };

struct weft_event {
	__u64 time_ns;
	union weft_addr src, dst;
	__be16 sport, dport;
	__u32 len;
	__u16 slot;
	__u8 type;
	__u8 verdict;
	__u8 reason;
	__u8 hook;
	__u8 direction;
	__u8 family; /* 4, 6, or 0 for frames that are not IP */
	__u8 proto;
	__u8 tcp_flags;
	__be16 ethertype;
	__u32 network;
	struct weft_counter forward, reply;
	__u32 rule; /* the policy rule that refused it; 0: none */
	__u32 pad;
};

struct weft_event_stats {
	__u64 suppressed; /* held back by the rate limit */
	__u64 lost;	  /* the ring buffer was full */
	__u64 woken_ns;	  /* when the reader was last woken; CLOCK_MONOTONIC, coarse */
};

/* What source_filter.bpf.c has dropped, per CPU. */
struct weft_source_filter {
	__u64 packets;
	__u64 last_ns; /* when the last of them came; CLOCK_MONOTONIC, coarse */
	union weft_addr last;
};

struct weft_bucket {
	__u64 full_ns; /* when the bucket will be full again */
};

/* What the clocks showed in a tick of the kernel's. */
struct weft_clock {
	__u64 tick; /* jiffies */
	__u64 mono_ns;
	__u64 boot_ns;
};

/* The two kinds of bucket of each owner, and the two that all share, behind those. */
enum weft_bucket_index { BUCKET_EVENTS, BUCKET_ICMP, BUCKET_COUNT };

#endif
