// SPDX-License-Identifier: GPL-2.0-only
/* pre_routing: netfilter's first hook on the way in, before reassembly and translation, for every
 * interface that has no hook of Weft's. Whoever is behind one is the world, and may not speak in
 * the cluster's name: not to pods, for whom to_pod would refuse it, not to this host, and not as
 * the rest of somebody else's fragmented packet. What is let pass here in this host's own name has
 * been translated by this host. */
#include "lib/netfilter.h"

/* Nodes talk to each other in cleartext, by whatever interface; all else of the cluster's is
 * refused. */
ALWAYS_INLINE int check_unmanaged(const struct weft_config *cfg, const struct weft_pkt *p)
{
	const struct weft_route *from = route_of(&p->src);

	if (is_other_node(from))
		return REASON_NONE;
	if (from && from->flags & ROUTE_HOST)
		return REASON_FOREIGN_SOURCE;
	return check_outside_source(cfg, p);
}

SEC("netfilter")
int weft_pre_routing(struct bpf_nf_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_PRE_ROUTING, .direction = DIR_INGRESS};
	const struct weft_config *cfg = config();
	__u32 in = ctx->state->in->ifindex;
	struct weft_origin o;
	int reason;

	if (!cfg)
		return NF_DROP;
	if (is_hooked(in) || in == cfg->net_ifindex)
		return NF_ACCEPT;
	origin_find(cfg, ctx->skb->skb_iif, ctx->skb->tc_index, &o);
	if (o.kind == ORIGIN_ENDPOINT)
		return NF_ACCEPT; /* a chained pod's, by its bridge */
	p.ifindex = in;
	reason = read_packet(ctx->skb, &p) ?: check_unmanaged(cfg, &p);
	if (!reason)
		return NF_ACCEPT;
	drop(cfg, &p, reason);
	return NF_DROP;
}

char _license[] SEC("license") = "GPL";
