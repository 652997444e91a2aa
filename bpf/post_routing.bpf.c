// SPDX-License-Identifier: GPL-2.0-only
/* post_routing: netfilter's last hook on the way out, for every interface that there is or will be. What is
 * to be sealed may only leave by an interface whose egress hook seals it; the kernel may choose another (a
 * route, a policy rule, a new tunnel, an uplink made anew whose hooks are not back). Such packets end here. */
#include "lib/netfilter.h"

/* Whether the packet is one that to_wire would seal, or drop. */
ALWAYS_INLINE int concerns_pods(const struct weft_pkt *p, __u32 iif)
{
	const struct weft_route *r = route_of(&p->dst);

	/* A chained pod of this node, in a range that is the cluster's. */
	if (bpf_map_lookup_elem(&weft_ep_addr, &p->dst))
		return 0;
	if (!r || (!r->node && !(r->flags & ROUTE_NO_NODE)))
		return 0;
	if (!(r->flags & ROUTE_HOST))
		return 1;
	/* A node's own address: only what pods send there is sealed. */
	return bpf_map_lookup_elem(&weft_ep_if, &iif) || bpf_map_lookup_elem(&weft_ep_addr, &p->src);
}

SEC("netfilter")
int weft_post_routing(struct bpf_nf_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_POST_ROUTING, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	__u32 out = ctx->state->out->ifindex, iif = ctx->skb->skb_iif;

	if (!cfg)
		return NF_DROP;
	if (is_hooked(out))
		return NF_ACCEPT;
	if (read_packet(ctx->skb, &p))
		return NF_DROP;
	if (!concerns_pods(&p, iif) || !must_seal(cfg, &p))
		return NF_ACCEPT;
	p.ifindex = out;
	drop(cfg, &p, REASON_UNHOOKED_INTERFACE);
	return NF_DROP;
}

char _license[] SEC("license") = "GPL";
