/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_FORWARD_H
#define WEFT_FORWARD_H

#include "drop.h"
#include "frag.h"
#include "icmp.h"
#include "mss.h"
#include "neigh.h"
#include "pair.h"
#include "provenance.h"

/* The road of a packet. The first packet of a flow takes the slow path: every check, every look-up;
 * the decision is kept in the flow. The others take the fast path: one look-up, and the
 * decision is used as long as nothing that it was made from has changed (generation). */

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

/* Towards a pod of another node: the one place that every such packet passes. */
ALWAYS_INLINE int send_remote(weft_ctx *ctx, struct weft_pkt *p, const struct weft_cached *c,
			      struct weft_flow *flow)
{
	if (!weft_sealing || !c->seal || weft_tracing)
		return ctx_to_wire(ctx, c->out_ifindex);
	p->node = c->node;
	p->identity = c->identity;
	return needs_pair(ctx, flow) ? CTX_PAIR : CTX_SEAL;
}

/* What a hook's program ends with: seals what is to be sealed. Not where it was decided, because
 * the stack of BPF has 512 bytes for all calls that are open at once. */
ALWAYS_INLINE int finish(weft_ctx *ctx, const struct weft_config *cfg, const struct weft_pkt *p, int act)
{
	int reason;

	if (!weft_sealing || (act != CTX_SEAL && act != CTX_PAIR))
		return act;
	if (p->proto == IPPROTO_TCP && p->tcp_flags & TCP_SYN && !p->frag)
		clamp_mss(ctx, p);
	if (act == CTX_PAIR) {
		act = pair_send(ctx, cfg, p->node, p->identity);
	} else {
		reason = seal(ctx, cfg, p->node, p->identity);
		if (reason)
			return drop(cfg, p, reason);
		act = send_sealed(ctx, p->node);
	}
	return act == CTX_DROP ? drop(cfg, p, REASON_INTERNAL) : act;
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
	return send_remote(ctx, p, c, flow);
}

/* Decides by the destination alone. Returns a drop reason. */
SUBPROGRAM int route(const struct weft_config *cfg, const struct weft_pkt *p, struct weft_cached *c)
{
	const struct weft_peer *peer;
	struct weft_endpoint *to;
	struct weft_route *r;
	struct weft_node *node;
	__u32 index;

	if (!cfg || !p || !c)
		return REASON_INTERNAL;
	c->verdict = VERDICT_STACK;
	to = bpf_map_lookup_elem(&weft_ep_addr, &p->dst);
	if (to) {
		trace(p, STEP_TO_LOCAL, to->slot, to->ifindex, 0);
		c->dst_slot = to->slot;
		if (cfg->flags & CONFIG_STACK || (CTX_IS_XDP && !(to->flags & ENDPOINT_XDP_OUT)))
			return REASON_NONE;
		c->verdict = VERDICT_LOCAL;
		c->out_ifindex = to->ifindex;
		c->mtu = to->mtu;
		mac_copy(c->dmac, to->mac);
		mac_copy(c->smac, to->gateway_mac);
		return REASON_NONE;
	}
	r = route_of(&p->dst);
	if (!r) {
		trace(p, STEP_NO_ROUTE, 0, 0, 0);
		return REASON_NONE;
	}
	if (r->flags & ROUTE_NO_NODE)
		return REASON_NO_NODE;
	if (!r->node)
		return r->flags & (ROUTE_HOST | ROUTE_OPEN) ? REASON_NONE : REASON_NO_ENDPOINT;
	index = r->node * 2 + (p->family == 6);
	if (weft_sealing && must_seal(cfg, p)) {
		peer = peer_of(r->node);
		if (!peer || !peer->epoch)
			return REASON_NO_KEY;
		trace(p, STEP_SEAL, r->node, peer->epoch, c->identity);
		c->seal = 1;
		c->node = r->node;
		c->mtu = peer->mtu;
		index = r->node * 2 + (peer->family == 6);
	} else if (r->flags & ROUTE_HOST) {
		return REASON_NONE;
	}
	node = bpf_map_lookup_elem(&weft_nodes, &index);
	if (!node)
		return REASON_INTERNAL;
	trace(p, STEP_TO_NODE, r->node, node->ifindex, 0);
	if (c->seal && !node->ifindex)
		return REASON_NO_NEXT_HOP;
	/* What is to be sealed stays out of the host's stack if it can: send_sealed has the kernel resolve. */
	if (!(node->flags & NODE_RESOLVED) && (CTX_IS_XDP || !c->seal)) {
		trace(p, STEP_NO_NEIGHBOR, r->node, 0, 0);
		return REASON_NONE;
	}
	if (cfg->flags & CONFIG_STACK || (CTX_IS_XDP && !(node->flags & NODE_XDP_OUT)))
		return REASON_NONE;
	c->verdict = VERDICT_REMOTE;
	c->out_ifindex = node->ifindex;
	if (!c->seal)
		c->mtu = node->mtu;
	mac_copy(c->dmac, node->dmac);
	mac_copy(c->smac, node->smac);
	return REASON_NONE;
}

/* Keeps a decision in the flow, for the generation before the first look-up. Another CPU may read or write it
 * at the same time: what is then there is told by its digest. Last, whether the flow has become the stack's
 * meanwhile: the store before is a full barrier, as is the one in note_from_stack, so that one of the two sees
 * the other. */
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
ALWAYS_INLINE int use_cached(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p, int check_mac,
			     int *act)
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
	if (c->generation != generation || c->digest != cached_digest(p, c) || c->in_ifindex != p->ifindex)
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
		*act = to_stack(p);
	} else {
		if (p->ttl <= 1 || too_big(p, c))
			return 0;
		*act = transmit(ctx, p, c, ref.flow);
	}
	flow_update(cfg, p, ref, c->verdict, now);
	return 1;
}

/* Routes a packet that has passed its hook's checks: its flow, its road, its limits. c comes with the
 * slots and the source MAC set; back_ifindex is where an ICMP error about it goes. */
ALWAYS_INLINE int forward(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			  struct weft_cached *c, __u32 back_ifindex)
{
	struct weft_flow_ref ref = {};
	int via_stack = 0, reason;
	__u64 now = clock_mono();

	reason = frag_check(p);
	if (reason)
		return drop(cfg, p, reason);
	if (p->error)
		reason = icmp_related(ctx, cfg, p, &via_stack);
	if (reason)
		return drop(cfg, p, reason);
	reason = route(cfg, p, c);
	if (reason)
		return drop(cfg, p, reason);
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

/* Parses; where only the linear part of a TC packet was too short, pulls the headers in and tries again. */
SUBPROGRAM int parse(weft_ctx *ctx, struct weft_pkt *p)
{
	int reason;

	if (!p)
		return REASON_INTERNAL;
	reason = parse_frame(ctx, p);

	if (unlikely(reason == REASON_TRUNCATED) && !ctx_pull(ctx, PULL_LEN)) {
		__u8 hook = p->hook, direction = p->direction;

		__builtin_memset(p, 0, sizeof(*p));
		p->hook = hook;
		p->direction = direction;
		reason = parse_frame(ctx, p);
	}
	if (reason)
		trace(p, STEP_MALFORMED, reason, 0, 0);
	else
		trace(p, STEP_PARSED, p->family, p->proto,
		      (__u32)bpf_ntohs(p->sport) << 16 | bpf_ntohs(p->dport));
	return reason;
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
	if (p->family == 6 && (p->dst.b[0] == 0xff || (p->proto == IPPROTO_ICMPV6 && p->slow && !p->frag)))
		return;
	ref = flow_get(cfg, p, 1, VERDICT_STACK, &via_stack, now);
	if (!ref.flow || ref.flow->flags & (ref.dir ? FLOW_SEEN_1 : FLOW_SEEN_0))
		return;
	/* No from_* hook saw this direction, so the stack made it: by translating another, whose entry the
	 * replies may have met without this one's mark. */
	if (!(ref.flow->flags & FLOW_VIA_STACK) && !weft_tracing) {
		flow_flag(ref.flow, FLOW_VIA_STACK);
		store_ordered(&ref.flow->half[0].cached.generation, 0);
		store_ordered(&ref.flow->half[1].cached.generation, 0);
	}
	flow_update(cfg, p, ref, VERDICT_STACK, now);
}

#endif
