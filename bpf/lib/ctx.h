/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_CTX_H
#define WEFT_CTX_H

/* The one difference between the two contexts. A program is compiled with WEFT_XDP or without;
 * everything else is written against the names below. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "flow_structs.h"

#define ALWAYS_INLINE static __always_inline
/* A global function: the verifier checks it once, by itself, instead of once for every path that
 * leads to it. It knows nothing of its callers, so pointers must be checked for NULL and contents
 * for range. */
#define SUBPROGRAM __noinline

#define unlikely(x) __builtin_expect(!!(x), 0)

/* Set by the loader: the traced copy of a program writes its decisions to weft_trace and changes
 * nothing else. In the live copy the verifier removes every branch on it. */
const volatile __u8 weft_tracing = 0;

/* Set by the loader where frames may be larger than a page. */
const volatile __u8 weft_multi_buffer = 0;

/* Set by the loader where what crosses between nodes is sealed. Off, no program needs the kernel's
 * crypto, so older kernels load it. */
const volatile __u8 weft_sealing = 0;

/* Random odd numbers, the same in all programs of an agent: see cached_digest and frag_place. */
const volatile __u64 weft_weights[11] = {};

/* Not a verdict of the kernel's: the frame is still to be sealed, see seal_and_redirect(). */
#define CTX_SEAL 0x5ea1
/* Nor is this: it goes through the segmentation veth, where it is sealed. */
#define CTX_PAIR 0x5ea2

#ifdef WEFT_XDP
typedef struct xdp_md weft_ctx;
#else
typedef struct __sk_buff weft_ctx;
#endif

ALWAYS_INLINE void *ctx_data(weft_ctx *ctx) { return (void *)(long)ctx->data; }
ALWAYS_INLINE void *ctx_end(weft_ctx *ctx) { return (void *)(long)ctx->data_end; }

#ifdef WEFT_XDP

#define WEFT_SEC     "xdp"
#define CTX_PASS     XDP_PASS
#define CTX_DROP     XDP_DROP
#define CTX_REDIRECT XDP_REDIRECT
#define CTX_IS_XDP   1

ALWAYS_INLINE __u32 ctx_len(weft_ctx *ctx)
{
	if (weft_multi_buffer)
		return bpf_xdp_get_buff_len(ctx);
	return ctx->data_end - ctx->data;
}

/* Copies from the frame, linear or not. */
#define ctx_load(ctx, off, to, len) bpf_xdp_load_bytes(ctx, off, to, len)

ALWAYS_INLINE __u32 ctx_packets(weft_ctx *ctx) { return 1; }
ALWAYS_INLINE __u32 ctx_segment(weft_ctx *ctx) { return 0; }
ALWAYS_INLINE __u32 ctx_ifindex(weft_ctx *ctx) { return ctx->ingress_ifindex; }
ALWAYS_INLINE int ctx_tagged(weft_ctx *ctx) { return 0; }

/* XDP headers are always linear: nothing to pull. */
ALWAYS_INLINE int ctx_pull(weft_ctx *ctx, __u32 len) { return -1; }

ALWAYS_INLINE int ctx_to_wire(weft_ctx *ctx, __u32 ifindex) { return bpf_redirect(ifindex, 0); }
ALWAYS_INLINE int ctx_to_pod(weft_ctx *ctx, __u32 ifindex) { return bpf_redirect(ifindex, 0); }
/* Nobody resolves a neighbour for an XDP frame. */
ALWAYS_INLINE int ctx_to_neighbor(weft_ctx *ctx, __u32 ifindex) { return XDP_DROP; }

/* Sends a frame back to where it came from. Not by XDP_TX: a veth delivers that only if the other
 * end has an XDP program too, while a redirect needs no more than NAPI (GRO) there. */
ALWAYS_INLINE int ctx_reply(weft_ctx *ctx, __u32 ifindex) { return bpf_redirect(ifindex, 0); }

/* Writes to the frame, linear or not. */
#define ctx_store(ctx, off, from, len) bpf_xdp_store_bytes(ctx, off, from, len)

/* Replaces a 16-bit word at off and brings the TCP or UDP checksum at check in line (RFC 1624
 * equation 3). */
ALWAYS_INLINE int ctx_replace(weft_ctx *ctx, __u32 off, __u32 check, __u16 old, __u16 new)
{
	__u16 sum;
	__u32 wide;

	if (bpf_xdp_load_bytes(ctx, check, &sum, 2))
		return -1;
	wide = (__u16)~sum + (__u16)~old + new;
	wide = (wide & 0xffff) + (wide >> 16);
	wide = (wide & 0xffff) + (wide >> 16);
	sum = ~wide;
	if (bpf_xdp_store_bytes(ctx, check, &sum, 2))
		return -1;
	return bpf_xdp_store_bytes(ctx, off, &new, 2);
}

/* Takes n bytes behind the Ethernet header away and cuts the frame to len bytes in all. */
ALWAYS_INLINE int ctx_strip(weft_ctx *ctx, __u32 n, __u32 len, __be16 from, __be16 to)
{
	struct ethhdr *eth = ctx_data(ctx), was;
	int cut;

	if ((void *)(eth + 1) > ctx_end(ctx))
		return -1;
	was = *eth;
	if (bpf_xdp_adjust_head(ctx, n))
		return -1;
	cut = (int)len - (int)ctx_len(ctx);
	if (cut > 0 || (cut < 0 && bpf_xdp_adjust_tail(ctx, cut)))
		return -1;
	eth = ctx_data(ctx);
	if ((void *)(eth + 1) > ctx_end(ctx))
		return -1;
	was.h_proto = to;
	*eth = was;
	return 0;
}

/* Cuts the frame to len bytes and then opens room bytes before it. */
ALWAYS_INLINE int ctx_reshape(weft_ctx *ctx, __u32 len, __u32 room)
{
	int cut = (int)len - (int)ctx_len(ctx);

	if (cut < 0 && bpf_xdp_adjust_tail(ctx, cut))
		return -1;
	return bpf_xdp_adjust_head(ctx, -(int)room);
}

ALWAYS_INLINE int ctx_set_hop_limit(weft_ctx *ctx, __u8 *field, __u8 value)
{
	*field = value;
	return 0;
}

#else

/* Since Linux 6.3; older headers do not name them. */
#ifndef BPF_F_ADJ_ROOM_DECAP_L3_IPV4
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
#endif

#define WEFT_SEC		    "tc"
/* TC_ACT_UNSPEC is tcx's "next": programs of others on the same hook still run. */
#define CTX_PASS		    TC_ACT_UNSPEC
#define CTX_DROP		    TC_ACT_SHOT
#define CTX_REDIRECT		    TC_ACT_REDIRECT
#define CTX_IS_XDP		    0

ALWAYS_INLINE __u32 ctx_len(weft_ctx *ctx) { return ctx->len; }
#define ctx_load(ctx, off, to, len) bpf_skb_load_bytes(ctx, off, to, len)
ALWAYS_INLINE __u32 ctx_packets(weft_ctx *ctx) { return ctx->gso_segs ?: 1; }
/* Payload bytes per segment of a GSO frame, 0 for others. */
ALWAYS_INLINE __u32 ctx_segment(weft_ctx *ctx) { return ctx->gso_size; }
ALWAYS_INLINE __u32 ctx_ifindex(weft_ctx *ctx) { return ctx->ifindex; }
ALWAYS_INLINE int ctx_tagged(weft_ctx *ctx) { return ctx->vlan_present; }
ALWAYS_INLINE void ctx_mark_routed(weft_ctx *ctx) { ctx->tc_index = TAG_ROUTED; }

ALWAYS_INLINE int ctx_pull(weft_ctx *ctx, __u32 len)
{
	if (ctx->data_end - ctx->data >= len || ctx->data_end - ctx->data >= ctx->len)
		return -1;
	return bpf_skb_pull_data(ctx, len < ctx->len ? len : ctx->len);
}

ALWAYS_INLINE int ctx_to_wire(weft_ctx *ctx, __u32 ifindex)
{
	ctx_mark_routed(ctx);
	return bpf_redirect(ifindex, 0);
}

ALWAYS_INLINE int ctx_to_neighbor(weft_ctx *ctx, __u32 ifindex)
{
	ctx_mark_routed(ctx);
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

ALWAYS_INLINE int ctx_to_pod(weft_ctx *ctx, __u32 ifindex) { return bpf_redirect_peer(ifindex, 0); }

ALWAYS_INLINE int ctx_reply(weft_ctx *ctx, __u32 ifindex)
{
	ctx_mark_routed(ctx);
	return bpf_redirect(ifindex, 0);
}

/* skb->csum, where a NIC has set it, is kept true. */
#define ctx_store(ctx, off, from, len)                                                             \
	bpf_skb_store_bytes(ctx, off, from, len, BPF_F_RECOMPUTE_CSUM)

ALWAYS_INLINE int ctx_replace(weft_ctx *ctx, __u32 off, __u32 check, __u16 old, __u16 new)
{
	/* The helper leaves a checksum alone that the device is to finish. */
	if (bpf_l4_csum_replace(ctx, check, old, new, 2))
		return -1;
	return bpf_skb_store_bytes(ctx, off, &new, 2, 0);
}

/* What the NIC said about the outer checksum says nothing about the inner one, hence the reset. */
ALWAYS_INLINE int ctx_strip(weft_ctx *ctx, __u32 n, __u32 len, __be16 from, __be16 to)
{
	struct ethhdr *eth;
	__u64 flags = 0;

	if (from != to)
		flags = to == bpf_htons(ETH_P_IP) ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4
						  : BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	if (bpf_skb_change_tail(ctx, len + n, 0) ||
	    bpf_skb_adjust_room(ctx, -(int)n, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	bpf_csum_level(ctx, BPF_CSUM_LEVEL_RESET);
	eth = ctx_data(ctx);
	if ((void *)(eth + 1) > ctx_end(ctx))
		return -1;
	eth->h_proto = to; /* no part of skb->csum at ingress */
	return 0;
}

ALWAYS_INLINE int ctx_reshape(weft_ctx *ctx, __u32 len, __u32 room)
{
	if (len < ctx->len && bpf_skb_change_tail(ctx, len, 0))
		return -1;
	return bpf_skb_change_head(ctx, room, 0);
}

/* IPv6 has no header checksum, so a changed hop limit must be told to CHECKSUM_COMPLETE. */
ALWAYS_INLINE int ctx_set_hop_limit(weft_ctx *ctx, __u8 *field, __u8 value)
{
	return bpf_skb_store_bytes(ctx, ETH_LEN + 7, &value, 1, BPF_F_RECOMPUTE_CSUM);
}

#endif

/* Keeps the compiler from reordering plain stores that another CPU reads. */
#define barrier() asm volatile("" ::: "memory")

/* Keeps the machine from reordering loads. x86 does not; BPF has no fence before load_acquire
 * (Linux 6.15), but an atomic that returns a value orders everything around it
 * (Documentation/bpf/standardization, "atomic operations", and the kernel's own rule for
 * value-returning atomics). */
ALWAYS_INLINE void load_fence(void)
{
#ifdef __TARGET_ARCH_x86
	barrier();
#else
	__u64 word = 0, was = __sync_fetch_and_add(&word, 1);

	asm volatile("" ::"r"(was) : "memory");
#endif
}

/* Stores the value with everything before it visible first, and everything after it later. */
#define store_ordered(to, value) ((void)__sync_lock_test_and_set(to, value))

/* Makes the compiler forget what it knows about a value, so that the check before its use stays in
 * the program, where the verifier sees it. */
#define forget(x) asm volatile("" : "+r"(x))

/* Whether a length is outside its limits, in two compares that the compiler cannot make one of: the
 * verifiers up to Linux 6.12 learn nothing about a number from the one. */
#define outside(x, min, max)                                                                       \
	({                                                                                         \
		int out__ = 1;                                                                     \
		forget(x);                                                                         \
		if ((x) >= (min)) {                                                                \
			forget(x);                                                                 \
			if ((x) <= (max))                                                          \
				out__ = 0;                                                         \
		}                                                                                  \
		out__;                                                                             \
	})

ALWAYS_INLINE void mac_copy(void *dst, const void *src)
{
	__u16 *d = dst;
	const __u16 *s = src;

	d[0] = s[0];
	d[1] = s[1];
	d[2] = s[2];
}

ALWAYS_INLINE int mac_equal(const void *x, const void *y)
{
	const __u16 *a = x, *b = y;

	return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]));
}

ALWAYS_INLINE int addr_equal(const union weft_addr *a, const union weft_addr *b)
{
	return a->d[0] == b->d[0] && a->d[1] == b->d[1];
}

ALWAYS_INLINE void addr_from4(union weft_addr *to, __be32 ip)
{
	to->d[0] = 0;
	to->w[2] = bpf_htonl(0xffff);
	to->w[3] = ip;
}

ALWAYS_INLINE int addr_is_mapped4(const union weft_addr *a)
{
	return !a->d[0] && a->w[2] == bpf_htonl(0xffff);
}

ALWAYS_INLINE int addr_is_link_local6(const union weft_addr *a)
{
	return a->b[0] == 0xfe && (a->b[1] & 0xc0) == 0x80;
}

#endif
