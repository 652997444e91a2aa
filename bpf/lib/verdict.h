/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_VERDICT_H
#define WEFT_VERDICT_H

#include "drop.h"
#include "mss.h"
#include "open.h"
#include "seal.h"
#include "sealer.h"
#include "segment.h"

/* Carries out what has been decided about a packet: gives it to the host's stack, rewrites and
 * redirects it, or has it sealed. */

ALWAYS_INLINE int to_stack(const struct weft_pkt *p)
{
	trace(p, STEP_VERDICT, VERDICT_STACK, 0, 0);
	count(p->slot, p->direction, VERDICT_STACK, p->packets, p->len);
	return CTX_PASS;
}

/* Writes the new link header and takes one from the TTL. */
ALWAYS_INLINE int rewrite(weft_ctx *ctx, const struct weft_pkt *p, const struct weft_cached *c)
{
	struct ethhdr *eth = ctx_data(ctx);
	void *end = ctx_end(ctx);

	if ((void *)(eth + 1) > end)
		return -1;
	mac_copy(eth->h_dest, c->dmac);
	mac_copy(eth->h_source, c->smac);
	if (p->family == 4) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end)
			return -1;
		ip->ttl--;
		csum_ttl_down(&ip->check);
		return 0;
	} else {
		struct ipv6hdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end)
			return -1;
		return ctx_set_hop_limit(ctx, &ip->hop_limit, ip->hop_limit - 1);
	}
}

#ifdef WEFT_XDP
ALWAYS_INLINE int note_stream(struct weft_flow *flow, __u32 node) { return 0; }
#else
/* Has a flow that streams go where large packets go, if the sealer is there for it: it seals many
 * at a time. */
static __noinline int note_stream(struct weft_flow *flow, __u32 node)
{
	const struct weft_config *cfg;
	__u16 tick;

	tick = clock_mono() >> FLOW_TICK_SHIFT;
	if (flow->run_tick != tick || flow->segment_tick == tick)
		return 0;
	cfg = config();
	if (cfg && sealer_has(cfg, node))
		flow->segment_tick = tick;
	return 0;
}
#endif

/* What becomes of a packet for another node: it leaves as it is, or is still to be sealed
 * (CTX_SEAL, CTX_PAIR). The one place that every such packet passes. */
ALWAYS_INLINE int to_remote(weft_ctx *ctx, struct weft_pkt *p, const struct weft_cached *c,
			    struct weft_flow *flow)
{
	if (!weft_sealing || !(c->flags & CACHED_SEAL) || weft_tracing)
		return ctx_to_wire(ctx, c->out_ifindex);
	p->node = c->node;
	p->identity = c->identity;
	if (flow && unlikely(flow->run >= STREAM_RUN))
		note_stream(flow, c->node);
	return needs_segmentation(ctx, flow) ? CTX_PAIR : CTX_SEAL;
}

/* Carries out a decision that is not the stack's on a packet that fits it. */
ALWAYS_INLINE int transmit(weft_ctx *ctx, struct weft_pkt *p, const struct weft_cached *c,
			   struct weft_flow *flow)
{
	trace(p, STEP_VERDICT, c->verdict, 0, c->out_ifindex);
	if (c->src_slot || p->direction == DIR_EGRESS)
		count(c->src_slot, DIR_EGRESS, c->verdict, p->packets, p->len);
	if (c->verdict == VERDICT_LOCAL)
		count(c->dst_slot, DIR_INGRESS, VERDICT_LOCAL, p->packets, p->len);
	if (rewrite(ctx, p, c))
		return CTX_DROP;
	if (c->verdict == VERDICT_LOCAL)
		return ctx_to_pod(ctx, c->out_ifindex);
	return to_remote(ctx, p, c, flow);
}

/* Sends what stands for many packets, or follows such in its flow, where it is cut and sealed: to
 * the sealer, in whose queue who has a share, or into the segmentation veth. */
ALWAYS_INLINE int to_be_cut(weft_ctx *ctx, const struct weft_config *cfg, const struct weft_pkt *p,
			    __u32 who, __u32 node, __u32 identity)
{
	int act;

#ifndef WEFT_XDP
	if (sealer_take(ctx, cfg, p, who, node, identity, &act))
		return act;
#endif
	act = segment_send(ctx, cfg, SEGMENT_SEAL, node, identity);
	return act == CTX_DROP ? drop(cfg, p, REASON_INTERNAL) : act;
}

/* What a hook's program ends with: seals what is to be sealed. Not where it was decided, because
 * the stack of BPF has 512 bytes for all calls that are open at once. */
ALWAYS_INLINE int seal_and_redirect(weft_ctx *ctx, const struct weft_config *cfg,
				    const struct weft_pkt *p, int act)
{
	int reason;

	if (!weft_sealing || (act != CTX_SEAL && act != CTX_PAIR))
		return act;
	if (p->proto == IPPROTO_TCP && p->tcp_flags & TCP_SYN && !p->frag)
		clamp_mss(ctx, p);
	if (act == CTX_PAIR)
		return to_be_cut(ctx, cfg, p, p->slot, p->node, p->identity);
	reason = seal(ctx, cfg, p->node, p->identity);
	if (reason)
		return drop(cfg, p, reason);
	act = send_sealed(ctx, p->node);
	return act == CTX_DROP ? drop(cfg, p, REASON_INTERNAL) : act;
}

#endif
