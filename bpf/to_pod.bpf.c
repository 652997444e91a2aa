// SPDX-License-Identifier: GPL-2.0-only
/* to_pod: what the host's stack sends to a pod, on the host side of the pod's interface. TC only:
 * redirects from the other hooks do not pass here. Fails closed: by whatever interface a packet
 * came to this node, nothing reaches a pod in cleartext that must be sealed, nor in another pod's
 * name, nor what its policy refuses. */
#include "lib/forward.h"

/* Returns a drop reason. What the host itself sends is its own business. */
ALWAYS_INLINE int check_delivery(const struct weft_config *cfg, const struct weft_pkt *p,
				 const struct weft_origin *o, int malformed)
{
	if (o->kind == ORIGIN_HOST)
		return REASON_NONE;
	if (malformed)
		return malformed;
	/* from_pod and from_wire have checked the source, which may have been translated since. */
	if (o->kind == ORIGIN_ENDPOINT || o->kind == ORIGIN_OPENED)
		return REASON_NONE;
	return check_outside_source(cfg, p);
}

/* Who sent it, where provenance knows. A source that has been translated to this host's own is not
 * this host.
 */
ALWAYS_INLINE __u32 sender_of(const struct weft_pkt *p, const struct weft_origin *o)
{
	const struct weft_route *from;

	if (o->kind == ORIGIN_HOST)
		return IDENTITY_HOST;
	if ((o->kind == ORIGIN_ENDPOINT || o->kind == ORIGIN_OPENED) && o->identity)
		return o->identity;
	from = route_of(&p->src);
	return from && !from->node && from->flags & ROUTE_HOST ? IDENTITY_WORLD : IDENTITY_UNKNOWN;
}

/* Returns a drop reason. What this host itself sends is allowed: kubelet's probes. */
ALWAYS_INLINE int check_policy(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			       const struct weft_origin *o)
{
	int reason;

	if (!policy_in(p->slot) && !(o->slot && policy_in(o->slot)))
		return REASON_NONE;
	if (p->error)
		return o->kind == ORIGIN_ENDPOINT ? REASON_NONE : icmp_delivered(ctx, cfg, p);
	reason = frag_check(p);
	return reason ?: policy_leaving(cfg, p, POLICY_SLOTS(o->slot, p->slot));
}

SEC(WEFT_SEC)
int weft_to_pod(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_TO_POD, .direction = DIR_INGRESS};
	const struct weft_config *cfg = config();
	struct weft_origin o;
	struct weft_endpoint *ep;
	int malformed, reason;

	if (!cfg)
		return CTX_DROP;
	/* Before the parser: most of what comes has been decided by another hook. */
	origin_of(ctx, cfg, &o);
	tag_clear(ctx);
	if (o.kind == ORIGIN_ROUTED)
		return CTX_PASS;
	malformed = parse(ctx, &p);
	ep = bpf_map_lookup_elem(&weft_ep_if, &p.ifindex);
	if (!ep)
		return drop(cfg, &p, REASON_UNKNOWN_INTERFACE);
	p.slot = ep->slot;
	if (!p.family) {
		if (p.ethertype == bpf_htons(ETH_P_ARP) && !p.tagged)
			return CTX_PASS;
		return drop(cfg, &p, malformed ?: p.tagged ? REASON_VLAN_TAGGED : REASON_ETHERTYPE);
	}
	/* The host's stack, and what it forwards, is in the cluster's network. */
	if (ep->network) {
		p.network = ep->network;
		return drop(cfg, &p, REASON_OTHER_NETWORK);
	}
	reason = check_delivery(cfg, &p, &o, malformed);
	if (!reason && !malformed && (o.kind == ORIGIN_WIRE || o.kind == ORIGIN_OTHER))
		reason = icmp_plain(ctx, cfg, &p);
	if (!reason && !malformed && skb_overwrites(ctx, &p))
		reason = REASON_CHECKSUM_OFFSET;
	p.sender = sender_of(&p, &o);
	p.reply = o.reply;
	p.answers = skb_answers(ctx);
	if (!reason && cfg->flags & CONFIG_POLICY && o.kind != ORIGIN_HOST)
		reason = check_policy(ctx, cfg, &p, &o);
	if (reason)
		return drop(cfg, &p, reason);
	/* A flow that was lost is entered as that of who began it. */
	p.reply |= p.answers;
	count(ep->slot, DIR_INGRESS, VERDICT_LOCAL, p.packets, p.len);
	if (!malformed)
		note_from_stack(cfg, &p);
	return CTX_PASS;
}

char _license[] SEC("license") = "GPL";
