/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_FASTPATH_H
#define WEFT_FASTPATH_H

#include "flow.h"
#include "verdict.h"

/* The fast path: the decision about a flow's first packet is kept in the flow (remember), and the
 * packets that follow use it after one look-up (use_cached), as long as nothing that it was made
 * from has changed (generation). */

/* Keeps a decision in the flow, for the generation before the first look-up. Another CPU may read
 * or write it at the same time: what is then there is told by its digest. Last, whether the flow
 * has become the stack's meanwhile: the store before is a full barrier, as is the one in
 * note_from_stack, so that one of the two sees the other. */
static __noinline int remember(const struct weft_pkt *p, struct weft_flow *flow, __u32 dir,
			       struct weft_cached *c)
{
	struct weft_cached *to = &flow->half[dir & 1].cached;

	if (weft_tracing)
		return 0;
	c->in_ifindex = p->ifindex;
	c->generation = p->generation;
	c->digest = cached_digest(p, c);
	*to = *c;
	store_ordered(&to->generation, p->generation);
	if (c->verdict != VERDICT_STACK && *(volatile __u32 *)&flow->flags & FLOW_VIA_STACK)
		store_ordered(&to->generation, 0);
	return 0;
}

ALWAYS_INLINE int too_big(const struct weft_pkt *p, const struct weft_cached *c)
{
	return c->mtu && p->l3_size > c->mtu;
}

/* The fast path. Returns 1 and sets *act if the cached decision holds for this packet. */
ALWAYS_INLINE int use_cached(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			     int check_mac, int *act)
{
	struct weft_flow_ref ref;
	struct weft_cached *from, *c;
	struct weft_flow *scratch;
	struct ethhdr *eth;
	__u32 generation, zero = 0;
	__u64 now;

	if (p->slow || !p->family || is_syn(p))
		return 0;
	ref = flow_find(p);
	if (!ref.flow)
		return 0;
	from = &ref.flow->half[ref.dir & 1].cached;
	generation = generation_of(cfg);
	if (*(volatile __u32 *)&from->generation != generation)
		return 0;
	scratch = bpf_map_lookup_elem(&weft_scratch, &zero);
	if (!scratch)
		return 0;
	c = &scratch->half[0].cached;
	*c = *from;
	barrier(); /* the compiler must not read from again: it may have changed */
	if (c->generation != generation || c->digest != cached_digest(p, c) ||
	    c->in_ifindex != p->ifindex)
		return 0;
	now = clock_mono();
	if (flow_idle(ref.flow, now) > (__s64)TIMEOUT_FAST)
		return 0;
	eth = ctx_data(ctx);
	if ((void *)(eth + 1) > ctx_end(ctx) || (check_mac && !mac_equal(eth->h_source, c->in_mac)))
		return 0;
	if (!check_mac && (c->node != p->node || c->identity != p->identity))
		return 0;
	p->slot = check_mac ? c->src_slot : c->dst_slot;
	trace(p, STEP_CACHE_HIT, c->verdict, 0, 0);
	if (c->verdict == VERDICT_STACK) {
		p->reply = !!(c->flags & CACHED_REPLY);
		*act = to_stack(p);
	} else {
		if (p->ttl <= 1 || too_big(p, c))
			return 0;
		*act = transmit(ctx, p, c, ref.flow);
	}
	flow_update(cfg, p, ref, c->verdict, now);
	return 1;
}

#endif
