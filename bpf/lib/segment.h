/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_SEGMENT_H
#define WEFT_SEGMENT_H

#include "esp.h"

/* The segmentation veth, weft_host and weft_net: a veth whose first end can neither segment nor
 * sum. What is redirected into it leaves the other end as packets of wire size with their checksums
 * in place, cut in one batch by the kernel, and from_segment seals them there. Policy and routing
 * have been done once, for the whole.
 */

#ifdef WEFT_XDP
ALWAYS_INLINE int needs_segmentation(weft_ctx *ctx, struct weft_flow *flow) { return 0; }
#else
/* Whether an skb must go through the segmentation veth: one that stands for many packets, or what
 * follows one in its flow, since it would overtake. Anything else is sealed where it is. */
ALWAYS_INLINE int needs_segmentation(weft_ctx *ctx, struct weft_flow *flow)
{
	__u16 tick = clock_mono() >> FLOW_TICK_SHIFT;
	__u32 start, field;

	if (!ctx_segment(ctx) && skb_unfinished(ctx, &start, &field) >= 0)
		return flow && (__u16)(tick - flow->segment_tick) <= 1;
	if (flow)
		flow->segment_tick = tick;
	return 1;
}
#endif

/* The next hop of the tunnel to a node; NULL if there is none. */
ALWAYS_INLINE const struct weft_nexthop *tunnel_hop(const struct weft_peer *peer, __u32 node)
{
	const struct weft_nexthop *next;
	__u32 index;

	if (!peer)
		return NULL;
	index = node * 2 + (peer->family == 6);
	next = bpf_map_lookup_elem(&weft_nexthops, &index);
	return next && next->ifindex ? next : NULL;
}

/* Sends a sealed frame to its node's next hop. An skb whose next hop is not known yet takes the
 * kernel's own look-up, which resolves it. */
ALWAYS_INLINE int send_sealed(weft_ctx *ctx, __u32 node)
{
	const struct weft_peer *peer = peer_of(node);
	const struct weft_nexthop *next = tunnel_hop(peer, node);
	struct ethhdr *eth = ctx_data(ctx);

	if (!peer || !next || (void *)(eth + 1) > ctx_end(ctx))
		return CTX_DROP;
	eth->h_proto = ethertype_of(peer->family);
	mac_copy(eth->h_dest, next->dmac);
	mac_copy(eth->h_source, next->smac);
	if (!(next->flags & NEXTHOP_RESOLVED))
		return ctx_to_neighbor(ctx, next->ifindex);
	return ctx_to_wire(ctx, next->ifindex);
}

/* Sends a frame into the segmentation veth. Its Ethernet header has no further use, so it carries
 * the decision.
 */
ALWAYS_INLINE int segment_send(weft_ctx *ctx, const struct weft_config *cfg, __be32 magic,
			       __u32 node, __u32 identity)
{
	struct weft_segment_header *h = ctx_data(ctx);

	if ((void *)(h + 1) > ctx_end(ctx))
		return CTX_DROP;
	*(__be32 *)h->magic = magic;
	h->node = bpf_htons(node);
	h->zero = 0;
	h->identity = bpf_htonl(identity);
	return bpf_redirect(cfg->segment_ifindex, 0);
}

/* Reads the decision. Returns the magic, 0 if the frame carries none. */
ALWAYS_INLINE __be32 segment_receive(weft_ctx *ctx, __u32 *node, __u32 *identity)
{
	struct weft_segment_header *h = ctx_data(ctx);

	if ((void *)(h + 1) > ctx_end(ctx))
		return 0;
	*node = bpf_ntohs(h->node);
	*identity = bpf_ntohl(h->identity);
	return *(__be32 *)h->magic;
}

/* Gives a frame to the uplink that leads to a node as if it came from there. */
ALWAYS_INLINE int to_uplink_ingress(weft_ctx *ctx, __u32 node)
{
	const struct weft_nexthop *next = tunnel_hop(peer_of(node), node);
	struct ethhdr *eth = ctx_data(ctx);

	if (!next || (void *)(eth + 1) > ctx_end(ctx))
		return CTX_DROP;
	mac_copy(eth->h_dest, next->smac);
	mac_copy(eth->h_source, next->dmac);
	return bpf_redirect(next->ifindex, BPF_F_INGRESS);
}

#endif
