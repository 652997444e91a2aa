/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_FORWARD_H
#define WEFT_FORWARD_H

#include "fastpath.h"
#include "frag.h"
#include "icmp.h"
#include "neigh.h"
#include "parse.h"
#include "provenance.h"
#include "route.h"

/* The slow path: the first packet of a flow takes it, with every check and every look-up, and keeps
 * the decision in the flow for the fast path. */

/* Routes a packet that has passed its hook's checks: its flow, its path, its limits. c comes with
 * the slots and the source MAC set; back_ifindex is where an ICMP error about it goes. */
ALWAYS_INLINE int forward(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			  struct weft_cached *c, __u32 back_ifindex)
{
	struct weft_flow_ref ref = {};
	int via_stack = 0, reason;
	__u64 now = clock_mono();

	reason = frag_check(p);
	if (reason)
		return drop(cfg, p, reason);
	if (p->error) {
		reason = icmp_related(ctx, cfg, p, &via_stack);
		/* Not in there: its calls would be open at the same time, see seal_and_redirect. */
		if (!reason && cfg->flags & CONFIG_POLICY)
			reason = policy_quoted(cfg, p);
		icmp_unquote(p);
	}
	if (reason)
		return drop(cfg, p, reason);
	reason = route(cfg, p, c);
	if (!reason && cfg->flags & CONFIG_POLICY && !p->error)
		reason = policy_forward(cfg, p, c);
	if (reason)
		return drop(cfg, p, reason);
	if (p->reply)
		c->flags |= CACHED_REPLY;
	if (!p->error) {
		ref = flow_get(cfg, p, 0, c->verdict, &via_stack, now);
		if (ref.flow && !weft_tracing)
			flow_flag(ref.flow, ref.dir ? FLOW_SEEN_1 : FLOW_SEEN_0);
	}
	if (via_stack)
		c->verdict = VERDICT_STACK;
	if (ref.flow) {
		if (!p->slow)
			remember(p, ref.flow, ref.dir, c);
		flow_update(cfg, p, ref, c->verdict, now);
	}
	if (c->verdict == VERDICT_STACK)
		return to_stack(p);
	if (p->ttl <= 1) {
		trace(p, STEP_TTL, p->ttl, 0, 0);
		drop(cfg, p, REASON_TTL_EXCEEDED);
		return icmp_refuse(ctx, cfg, p, 0, back_ifindex);
	}
	trace(p, STEP_MTU, p->l3_size, c->mtu, 0);
	if (too_big(p, c)) {
		drop(cfg, p, REASON_TOO_BIG);
		return icmp_refuse(ctx, cfg, p, c->mtu, back_ifindex);
	}
	return transmit(ctx, p, c, ref.flow);
}

/* What the stack sends to a pod, or for one to the wire: nothing is decided here, but
 * the flow is noted as the stack's, so that its replies go back through the stack. */
ALWAYS_INLINE void note_from_stack(const struct weft_config *cfg, struct weft_pkt *p)
{
	__u64 now = clock_mono();
	struct weft_flow_ref ref;
	int via_stack;

	if (!p->family || p->error || frag_check(p))
		return;
	/* Neighbour discovery and multicast are not conversations. */
	if (p->family == 6 &&
	    (p->dst.b[0] == 0xff || (p->proto == IPPROTO_ICMPV6 && p->slow && !p->frag)))
		return;
	ref = flow_get(cfg, p, 1, VERDICT_STACK, &via_stack, now);
	if (!ref.flow || ref.flow->flags & (ref.dir ? FLOW_SEEN_1 : FLOW_SEEN_0))
		return;
	/* No from_* hook saw this direction, so the stack made it: by translating another, whose
	 * entry the replies may have met without this one's mark. */
	if (!(ref.flow->flags & FLOW_VIA_STACK) && !weft_tracing) {
		flow_flag(ref.flow, FLOW_VIA_STACK);
		store_ordered(&ref.flow->half[0].cached.generation, 0);
		store_ordered(&ref.flow->half[1].cached.generation, 0);
	}
	flow_update(cfg, p, ref, VERDICT_STACK, now);
}

#endif
