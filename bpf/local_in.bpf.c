// SPDX-License-Identifier: GPL-2.0-only
/* local_in: netfilter's hook for what the stack delivers to this host itself, behind its filters
 * and before connection tracking takes note of it. from_pod judges what a pod sends to an address
 * that is this host's. Others reach it as well: one that the host translates to its own, a
 * link-local one, a group's. So a pod's policy is asked here, about the host, by whatever address.
 */
#include "lib/netfilter.h"

/* Returns a drop reason. from_pod has judged errors, and the later fragments for addresses of this
 * host by the ports of their first: IPv6's may come in pieces. */
ALWAYS_INLINE int check_policy(struct sk_buff *skb, const struct weft_config *cfg,
			       struct weft_pkt *p)
{
	int reason = read_packet(skb, p) ?: read_l4(skb, p);

	if (reason || p->error || (p->frag == FRAG_LATER && is_for_host(p)))
		return reason;
	return policy_leaving(cfg, p, POLICY_SLOTS(p->slot, 0));
}

SEC("netfilter")
int weft_local_in(struct bpf_nf_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_LOCAL_IN, .direction = DIR_EGRESS, .local = 1};
	const struct weft_config *cfg = config();
	struct sk_buff *skb = ctx->skb;
	struct weft_origin o;
	int reason;

	if (!cfg)
		return NF_DROP;
	if (!(cfg->flags & CONFIG_POLICY))
		return NF_ACCEPT;
	origin_find(cfg, skb->skb_iif, skb->tc_index, &o);
	if (o.kind != ORIGIN_ENDPOINT || !policy_in(o.slot))
		return NF_ACCEPT;
	p.slot = o.slot;
	p.ifindex = skb->skb_iif;
	/* A reply to this host may come from the address of a Service, of which the flow table
	 * knows nothing. */
	p.reply = o.reply || is_answer(tracked_as(skb));
	reason = check_policy(skb, cfg, &p);
	if (!reason)
		return NF_ACCEPT;
	drop(cfg, &p, reason);
	return NF_DROP;
}

char _license[] SEC("license") = "GPL";
