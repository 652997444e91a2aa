/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_SEALER_STRUCTS_H
#define WEFT_SEALER_STRUCTS_H

#include <linux/types.h>

/* What a frame on weft_sealer is. Held equal with internal/sealer by a test. */
enum weft_sealer_kind {
	SEALER_INVALID,
	SEALER_SEAL4,	/* hook to sealer: to be cut and sealed, for a tunnel over IPv4 */
	SEALER_SEAL6,	/* over IPv6 */
	SEALER_OPEN,	/* hook to sealer: an ESP packet in UDP, or several merged */
	SEALER_SEALED,	/* sealer to hook: ESP packets, outer addresses left to the hook */
	SEALER_OPENED,	/* sealer to hook: what count packets of consecutive numbers held, glued */
	SEALER_REFUSED, /* sealer to hook: count packets that it could do nothing with; identity
			   says why, and the number is the last of what was to be sealed, else 0 */
};

/* Why the sealer refuses, in the identity of SEALER_REFUSED. */
enum weft_sealer_refusal {
	SEALER_NO_KEY = 1,
	SEALER_MALFORMED,
	SEALER_BAD_TAG,
	SEALER_REPLAYED,
	SEALER_SEAL_FAILED,
	SEALER_ECN,
};

/* In place of the Ethernet addresses of a frame on weft_sealer, big endian:
 *   hi: kind 3 bits, count 8, SA 22 (sa_id), identity 22, sequence number bits 38 to 30
 *   lo: sequence number bits 29 to 0, 2 bits of zero
 * With SEALER_OPEN the number is the highest that was opened of the SA, 0 if the SA is not known.
 */
struct weft_sealer_header {
	__be64 hi;
	__be32 lo;
	__be16 ethertype;
} __attribute__((packed));

/* UDP source ports of what sealers send. A hint for the receiver, for which any other port is as
 * good: packets of these ports are merged by GRO and opened by its sealer, so that those of a flow
 * stay in order. */
#define SEALER_PORT_BASE 0x8000
#define SEALER_PORT_MASK 0xc000

#define SEALER_SEQ_BITS	 39
#define SEALER_SEQ_LIMIT (1ULL << SEALER_SEQ_BITS)
#define SEALER_COUNT_MAX 255
#define SEALER_ID_MASK	 0x3fffff

/* How many frames the tap's queue holds. Held equal with internal/netdev by a test. */
enum weft_sealer_room { SEALER_FRAMES = 512 };

/* What is known of the sealer's queue, see share.h. Frames are numbered from 1 as they are given.
 */
struct weft_sealer_queue {
	__u64 given; /* the number of the last one */
	__u64 done;  /* one that was answered */
	/* One whose answer is waited for, as sequence number and, above SEALER_SEQ_BITS, SA; 0:
	 * none, all ones: one is about to be. */
	__u64 awaited;
	__u64 awaited_number;
	__u64 awaited_ns;	       /* CLOCK_MONOTONIC */
	__u32 period;		       /* CLOCK_MONOTONIC, 2^24 ns; wraps */
	__u32 senders, senders_before; /* who sent in it, and in the one before */
	__u32 pad;
};

/* A sender's frames among them: by slot, 0 for this host, and one for all others. */
struct weft_sealer_share {
	__u64 last;	 /* the number of its last one */
	__u64 mark;	 /* one before which all of before were given, and all of since after */
	__u64 marked_ns; /* CLOCK_MONOTONIC */
	__u32 before, since;
	__u32 period; /* the last one in which it sent */
	__u32 pad;
};

/* Since when the sealer owes an answer, CLOCK_MONOTONIC nanoseconds, 0 if it owes none; and when a
 * packet was last risked on one that owes. */
struct weft_sealer_state {
	__u64 asked_ns;
	__u64 retried_ns;
};

#endif
