// SPDX-License-Identifier: GPL-2.0-only
/* post_routing: netfilter's last hook on the way out, for every interface that there is or will be.
 * What is to be sealed may only leave by an interface whose egress hook seals it; the kernel may
 * choose another (a route, a policy rule, a new tunnel, an uplink made anew whose hooks are not
 * back). Such packets end here, and those that the policy of their sender refuses. So does the
 * first packet of what a policy refuses where an egress hook would: behind that, connection
 * tracking would know of the conversation and translate answers. */
#include "lib/netfilter.h"

/* Whether the packet is one that to_wire would seal, or drop. Returns a drop reason. */
ALWAYS_INLINE int check_exit(struct sk_buff *skb, const struct weft_config *cfg, struct weft_pkt *p)
{
	const struct weft_endpoint *to = endpoint_at(NETWORK_CLUSTER, &p->dst);
	const struct weft_route *r = route_of(&p->dst);
	struct weft_origin o;

	/* A pod of this node is behind its own interface, which has hooks, or, chained, behind its
	 * bridge. */
	if (to)
		return is_behind(to, p->ifindex) ? REASON_NONE : REASON_NO_ENDPOINT;
	if (!r)
		return REASON_NONE;
	/* While the range is open, the interface may lead to somebody else who has addresses in it.
	 */
	if (is_own_range(r))
		return r->flags & ROUTE_OPEN ? REASON_NONE : REASON_NO_ENDPOINT;
	if (!r->node && !(r->flags & ROUTE_NO_NODE))
		return REASON_NONE;
	origin_find(cfg, skb->skb_iif, skb->tc_index, &o);
	if (r->flags & ROUTE_HOST && is_of_no_pod(p, &o, endpoint_at(NETWORK_CLUSTER, &p->src)) &&
	    !(o.kind == ORIGIN_HOST && quotes_sealed(skb, cfg, p)))
		return REASON_NONE;
	return must_seal(cfg, p) ? REASON_UNHOOKED_INTERFACE : REASON_NONE;
}

/* Whether connection tracking has not seen an answer yet: it may be about to take note of the
 * conversation. */
ALWAYS_INLINE int is_unanswered(struct sk_buff *skb)
{
	__u32 info = tracked_as(skb);

	return info == CT_NEW || info == CT_RELATED;
}

/* What an endpoint sends. Returns a drop reason. */
ALWAYS_INLINE int check_policy(struct sk_buff *skb, const struct weft_config *cfg,
			       struct weft_pkt *p)
{
	const struct weft_endpoint *to;
	struct weft_origin o;
	int reason;

	if (!(cfg->flags & CONFIG_POLICY))
		return REASON_NONE;
	origin_find(cfg, skb->skb_iif, skb->tc_index, &o);
	if (o.kind != ORIGIN_ENDPOINT)
		return REASON_NONE;
	p->slot = o.slot;
	p->reply = o.reply;
	reason = read_l4(skb, p);
	if (reason || p->error)
		return reason;
	to = endpoint_at(NETWORK_CLUSTER, &p->dst);
	return policy_leaving(cfg, p, POLICY_SLOTS(o.slot, to ? to->slot : 0));
}

SEC("netfilter")
int weft_post_routing(struct bpf_nf_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_POST_ROUTING, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	struct sk_buff *skb = ctx->skb;
	__u32 out = ctx->state->out->ifindex;
	int hooked, reason = REASON_NONE;

	if (!cfg)
		return NF_DROP;
	hooked = is_hooked(out);
	if (hooked && !(cfg->flags & CONFIG_POLICY && is_unanswered(skb)))
		return NF_ACCEPT;
	p.ifindex = out;
	reason = read_packet(skb, &p);
	if (!reason && !hooked)
		reason = overwrites_addresses(skb, &p) ? REASON_CHECKSUM_OFFSET : REASON_NONE;
	if (!reason && !hooked && weft_sealing)
		reason = check_exit(skb, cfg, &p);
	if (!reason)
		reason = check_policy(skb, cfg, &p);
	if (!reason)
		return NF_ACCEPT;
	drop(cfg, &p, reason);
	return NF_DROP;
}

char _license[] SEC("license") = "GPL";
