// SPDX-License-Identifier: GPL-2.0-only
/* from_pod: what a pod sends, on the host side of its interface. Fails closed: nothing
 * leaves a pod that is not provably its own. */
#include "lib/forward.h"

/* Set by the loader in the program of second interfaces, see pod_out. */
const volatile __u8 weft_second = 0;

ALWAYS_INLINE int is_multicast(const struct weft_pkt *p, const struct ethhdr *eth)
{
	if (eth->h_dest[0] & 1)
		return 1;
	if (p->family == 6)
		return p->dst.b[0] == 0xff;
	return (p->dst.b[12] & 0xf0) == 0xe0 || p->dst.w[3] == 0xffffffff;
}

/* The network of the pod behind an interface. */
ALWAYS_INLINE __u32 network_at(__u32 ifindex)
{
	const struct weft_endpoint *ep = bpf_map_lookup_elem(&weft_ep_if, &ifindex);

	return ep ? ep->network : NETWORK_CLUSTER;
}

ALWAYS_INLINE int finish_neigh(weft_ctx *ctx, const struct weft_config *cfg,
			       const struct weft_pkt *p, const struct weft_endpoint *ep, int result)
{
	switch (result) {
	case NEIGH_ANSWER:
		trace(p, STEP_VERDICT, VERDICT_ANSWERED, 0, ep->ifindex);
		count(p->slot, DIR_EGRESS, VERDICT_ANSWERED, p->packets, p->len);
		return ctx_reply(ctx, ep->ifindex);
	case NEIGH_ABSORB:
		trace(p, STEP_VERDICT, VERDICT_ABSORBED, 0, 0);
		count(p->slot, DIR_EGRESS, VERDICT_ABSORBED, p->packets, p->len);
		return CTX_DROP;
	case NEIGH_STACK:
		return to_stack(p);
	default:
		return drop(cfg, p, result);
	}
}

SUBPROGRAM int from_pod_slow(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			     int reason)
{
	struct ethhdr *eth = ctx_data(ctx);
	struct weft_cached c = {};
	struct weft_endpoint *ep;
	int result;

	if (!cfg || !p)
		return CTX_DROP;
	p->generation = generation_of(cfg);
	ep = bpf_map_lookup_elem(&weft_ep_if, &p->ifindex);
	if (!ep)
		return drop(cfg, p, REASON_UNKNOWN_INTERFACE);
	p->slot = c.src_slot = ep->slot;
	p->network = ep->network;
	c.identity = ep->identity;
	trace(p, STEP_ENDPOINT, ep->slot, ep->ifindex, 0);
	if (reason)
		return drop(cfg, p, reason);
	if ((void *)(eth + 1) > ctx_end(ctx))
		return drop(cfg, p, REASON_TRUNCATED);
	if (p->tagged)
		return drop(cfg, p, REASON_VLAN_TAGGED);
	if (!mac_equal(eth->h_source, ep->mac))
		return drop(cfg, p, REASON_SPOOFED_MAC);
	if (p->ethertype == bpf_htons(ETH_P_ARP))
		return finish_neigh(ctx, cfg, p, ep, neigh_arp(ctx, cfg, ep));
	if (!p->family)
		return drop(cfg, p, REASON_ETHERTYPE);
	result = neigh_nd(ctx, cfg, ep, p);
	if (result != NEIGH_NOT_ND)
		return finish_neigh(ctx, cfg, p, ep, result);
	if (!owns(ep, &p->src))
		return drop(cfg, p,
			    p->family == 6 && addr_is_link_local6(&p->src) ? REASON_LINK_LOCAL
									   : REASON_SPOOFED_IP);
	trace(p, STEP_SPOOF_OK, 0, 0, 0);
	if (is_multicast(p, eth)) {
		if (p->family == 4 && p->proto == IPPROTO_IGMP)
			return finish_neigh(ctx, cfg, p, ep, NEIGH_ABSORB);
		if (!(ep->flags & ENDPOINT_CHAINED))
			return drop(cfg, p, REASON_MULTICAST);
		/* The hooks behind the stack leave errors to this one. */
		return p->error ? drop(cfg, p, REASON_ICMP_NO_FLOW) : to_stack(p);
	}
	if (p->family == 6 && addr_is_link_local6(&p->dst))
		return drop(cfg, p, REASON_LINK_LOCAL);
	mac_copy(c.in_mac, eth->h_source);
	return forward(ctx, cfg, p, &c, ep->ifindex);
}

/* What a second interface leaves to the stack comes in by the endpoint's first one, which is where
 * its address is routed: on any other the stack's reverse path filter would drop it, and that is no
 * setting of the interface's own (the larger of its and conf.all's rp_filter counts). The first
 * one's hook is native XDP, which skbs do not pass, so nothing is checked twice. */
ALWAYS_INLINE int to_first(const struct weft_config *cfg, const struct weft_pkt *p)
{
	struct weft_endpoint *ep = bpf_map_lookup_elem(&weft_ep_if, &p->ifindex);

	return ep ? bpf_redirect(ep->ifindex, BPF_F_INGRESS)
		  : drop(cfg, p, REASON_UNKNOWN_INTERFACE);
}

SEC(WEFT_SEC)
int weft_from_pod(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_FROM_POD, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	int reason, act;

	if (!cfg)
		return CTX_DROP;
	reason = parse(ctx, &p);
	if (!reason && skb_overwrites(ctx, &p))
		reason = REASON_CHECKSUM_OFFSET;
	/* Flows are looked up by network; where all are of the cluster's there is nothing to look
	 * up for that.
	 */
	if (cfg->flags & CONFIG_NETWORKS)
		p.network = network_at(p.ifindex);
	if (reason || !use_cached(ctx, cfg, &p, 1, &act))
		act = from_pod_slow(ctx, cfg, &p, reason);
	if (act == CTX_PASS && tag_put(ctx, TAG_ENDPOINT | p.slot | (p.reply ? TAG_REPLY : 0)))
		return drop(cfg, &p, REASON_XDP_METADATA);
	act = seal_and_redirect(ctx, cfg, &p, act);
	return !CTX_IS_XDP && weft_second && act == CTX_PASS ? to_first(cfg, &p) : act;
}

char _license[] SEC("license") = "GPL";
