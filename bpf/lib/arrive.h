/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_ARRIVE_H
#define WEFT_ARRIVE_H

#include "forward.h"

/* What becomes of a packet from another node: as it came in cleartext, or as it was once it has
 * been opened, by from_wire itself or by the sealer. */

/* Sources that no host has on a wire (RFC 6890): this network, loopback, multicast, reserved. */
ALWAYS_INLINE int is_martian(const struct weft_pkt *p)
{
	if (p->family == 4)
		return p->src.b[12] == 0 || p->src.b[12] == 127 || p->src.b[12] >= 224;
	return p->src.b[0] == 0xff || (!p->src.d[0] && !p->src.w[2] && bpf_ntohl(p->src.w[3]) <= 1);
}

ALWAYS_INLINE int is_link_local(const union weft_addr *a)
{
	if (addr_is_mapped4(a))
		return a->b[12] == 169 && a->b[13] == 254;
	return addr_is_link_local6(a);
}

/* Whether a sealed packet's source is one that its node, under that identity, may send from: a
 * pod's identity from the node's pods (or its own address, if the node has translated theirs), the
 * host's from the node's own addresses, the world's from those or from outside of the cluster. */
ALWAYS_INLINE int check_inner_source(const struct weft_pkt *p, const struct weft_route *from)
{
	int host = p->identity == IDENTITY_HOST || p->identity == IDENTITY_WORLD;

	if (!from)
		return p->identity == IDENTITY_WORLD ? REASON_NONE : REASON_INNER_SOURCE;
	if (from->node != p->node || (host && !(from->flags & ROUTE_HOST)))
		return REASON_INNER_SOURCE;
	return REASON_NONE;
}

/* Whether who a packet was sealed as is who its source is here, the second witness. While an
 * address goes from one pod to another the two nodes may know of it one after the other: what the
 * new one sends is dropped until both do. */
ALWAYS_INLINE int check_identity(const struct weft_config *cfg, const struct weft_pkt *p)
{
	struct weft_addr_key key = {.addr = p->src};
	const __u32 *identity;

	if (!(cfg->flags & CONFIG_POLICY))
		return REASON_NONE;
	identity = bpf_map_lookup_elem(&weft_addr_ids, &key);
	return identity && *identity != p->identity ? REASON_IDENTITY_MISMATCH : REASON_NONE;
}

/* Whether the packet may come from where its source says, as it came: sealed, or in cleartext only
 * what a policy names. Nobody on a wire is this node. */
SUBPROGRAM int check_origin(const struct weft_config *cfg, const struct weft_pkt *p)
{
	const struct weft_route *from;

	if (!cfg || !p)
		return REASON_INTERNAL;
	from = route_of(&p->src);
	if (weft_sealing && p->node)
		return check_inner_source(p, from) ?: check_identity(cfg, p);
	return check_plain_source(cfg, p, from);
}

/* What never crosses a router, and so is not inside a sealed packet. Returns a drop reason. */
ALWAYS_INLINE int check_not_link(const struct weft_pkt *p)
{
	if (is_martian(p))
		return REASON_MARTIAN;
	if (is_link_local(&p->src) || is_link_local(&p->dst) || is_link_control(p))
		return REASON_LINK_LOCAL;
	if (p->dst.b[0] == 0xff || (p->family == 4 && p->dst.b[12] >= 224))
		return REASON_MULTICAST;
	return REASON_NONE;
}

/* What came in cleartext for the host itself, or to be routed by it. Nodes talk to each other in
 * cleartext: handshakes, ESP itself, the host's own services; discovery on the link is the kernel's
 * business. */
ALWAYS_INLINE int check_plain_to_host(const struct weft_config *cfg, const struct weft_pkt *p)
{
	if (p->family == 6 && is_link_control(p))
		return REASON_NONE;
	return is_other_node(route_of(&p->src)) ? REASON_NONE : check_origin(cfg, p);
}

SUBPROGRAM int to_host(const struct weft_config *cfg, const struct weft_pkt *p)
{
	const struct weft_route *r;
	int reason;

	if (!cfg || !p)
		return CTX_DROP;
	if (!weft_sealing || !p->node) {
		reason = check_plain_to_host(cfg, p);
		return reason ? drop(cfg, p, reason) : CTX_PASS;
	}
	reason = check_not_link(p);
	if (!reason)
		reason = check_origin(cfg, p);
	if (reason)
		return drop(cfg, p, reason);
	r = route_of(&p->dst);
	if (r && !r->node && !(r->flags & (ROUTE_HOST | ROUTE_NO_NODE | ROUTE_OPEN)))
		return drop(cfg, p, REASON_NO_ENDPOINT);
	return CTX_PASS;
}

SUBPROGRAM int arrive_slow(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			   int reason)
{
	struct weft_cached c = {};
	struct weft_endpoint *to;

	if (!cfg || !p)
		return CTX_DROP;
	/* What came sealed is for pods or this host and must be whole. */
	if (weft_sealing && p->node && (reason || !p->family))
		return drop(cfg, p, reason ?: REASON_BAD_IP_HEADER);
	if (!p->family)
		return reason && is_ip(p) ? drop(cfg, p, reason) : CTX_PASS;
	p->generation = generation_of(cfg);
	to = endpoint_at(NETWORK_CLUSTER, &p->dst);
	/* Not in to_host: its calls would be open at the same time, see seal_and_redirect. */
	if (!to && weft_sealing && (p->error || reason) && !p->node) {
		reason = icmp_to_host(ctx, cfg, p, reason);
		if (reason)
			return drop(cfg, p, reason);
	}
	if (!to)
		return to_host(cfg, p);
	p->slot = to->slot;
	trace(p, STEP_ENDPOINT, to->slot, to->ifindex, 0);
	if (reason)
		return drop(cfg, p, reason);
	if (endpoint_at(NETWORK_CLUSTER, &p->src))
		return drop(cfg, p, REASON_FOREIGN_SOURCE);
	if (is_martian(p))
		return drop(cfg, p, REASON_MARTIAN);
	if (is_link_local(&p->src) || (weft_sealing && p->node && is_link_control(p)))
		return drop(cfg, p, REASON_LINK_LOCAL);
	reason = check_origin(cfg, p);
	if (reason)
		return drop(cfg, p, reason);
	if (weft_sealing) {
		c.node = p->node;
		c.identity = p->identity;
		if (p->node)
			p->sender =
			    p->identity == IDENTITY_HOST ? IDENTITY_REMOTE_HOST : p->identity;
	}
	return forward(ctx, cfg, p, &c, p->ifindex);
}

/* Gives the frame to the stack, and with it who sealed it. */
ALWAYS_INLINE int pass_on(weft_ctx *ctx, const struct weft_config *cfg, const struct weft_pkt *p)
{
	__u16 tag = TAG_NONE;

	if (weft_sealing && p->node)
		tag = TAG_OPENED | handle_of(p->node, p->identity);
	if (tag_put(ctx, tag) && tag)
		return drop(cfg, p, REASON_XDP_METADATA);
	return CTX_PASS;
}

/* Brings a frame on its way. from is the uplink that the packet inside came by, 0 if that is the
 * frame's own interface. */
ALWAYS_INLINE int arrive(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			 __u32 from)
{
	int reason, act;

	reason = parse(ctx, p);
	if (from) {
		p->ifindex = from;
		if (!reason && skb_overwrites(ctx, p))
			return drop(cfg, p, REASON_CHECKSUM_OFFSET);
	}
	if (reason || !use_cached(ctx, cfg, p, 0, &act))
		act = arrive_slow(ctx, cfg, p, reason);
	if (act == CTX_PASS)
		return pass_on(ctx, cfg, p);
	return seal_and_redirect(ctx, cfg, p, act);
}

#endif
