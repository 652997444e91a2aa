/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_COUNT_H
#define WEFT_COUNT_H

#include "ctx.h"
#include "maps.h"

/* Per-CPU, so plain additions: a hook in softirq is not interrupted by another on its CPU. */
ALWAYS_INLINE void count(__u16 slot, enum weft_direction dir, enum weft_verdict verdict,
			 __u32 packets, __u32 bytes)
{
	__u32 index = (__u32)slot << 4 | dir << 3 | verdict;
	struct weft_counter *c;

	if (weft_tracing)
		return;
	c = bpf_map_lookup_elem(&weft_counters, &index);
	if (c) {
		c->packets += packets;
		c->bytes += bytes;
	}
}

ALWAYS_INLINE void count_drop(const struct weft_pkt *p, enum weft_reason reason)
{
	struct weft_drop_key key = {.slot = p->slot, .direction = p->direction, .reason = reason};
	__u32 index = (__u32)p->slot << 4 | p->direction << 3 | VERDICT_DROP;
	struct weft_counter first = {.packets = p->packets, .bytes = p->len};
	struct weft_counter *c;

	if (weft_tracing)
		return;
	/* Atomic: the netfilter hooks also run for what a process sends, and softirq may interrupt
	 * them. */
	c = bpf_map_lookup_elem(&weft_counters, &index);
	if (c) {
		__sync_fetch_and_add(&c->packets, p->packets);
		__sync_fetch_and_add(&c->bytes, p->len);
	}
	c = bpf_map_lookup_elem(&weft_drops, &key);
	if (c) {
		__sync_fetch_and_add(&c->packets, p->packets);
		__sync_fetch_and_add(&c->bytes, p->len);
	} else {
		bpf_map_update_elem(&weft_drops, &key, &first, BPF_NOEXIST);
	}
}

/* To be read before the first look-up of what it vouches for. */
ALWAYS_INLINE __u32 generation_of(const struct weft_config *cfg)
{
	__u32 generation = *(volatile __u32 *)&cfg->generation;

	load_fence();
	return generation;
}

ALWAYS_INLINE __u32 owner_of(const struct weft_pkt *p)
{
	return OWNER((__u32)p->slot, p->direction & 1);
}

/* A bucket of per_sec tokens, refilled at that rate, kept as the one time at which it is full
 * again (a virtual scheduling algorithm, ITU-T I.371). Returns whether a token was left. */
ALWAYS_INLINE int take_from(__u32 index, __u32 per_sec, __u64 now)
{
	struct weft_bucket *b = bpf_map_lookup_elem(&weft_buckets, &index);
	__u64 full;

	if (!b || !per_sec)
		return 0;
	full = b->full_ns > now ? b->full_ns : now;
	if (full - now > NSEC_PER_SEC)
		return 0;
	b->full_ns = full + NSEC_PER_SEC / per_sec;
	return 1;
}

/* A token of the owner's own bucket, or else of the one that all share: whoever floods empties that
 * and its own, and nobody else's. */
ALWAYS_INLINE int take_token(__u32 owner, enum weft_bucket_index which, __u32 own_per_sec,
			     __u32 shared_per_sec, __u64 now)
{
	return take_from(owner * BUCKET_COUNT + which, own_per_sec, now) ||
	       take_from(WEFT_MAX_OWNERS * BUCKET_COUNT + which, shared_per_sec, now);
}

#endif
