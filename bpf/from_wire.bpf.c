// SPDX-License-Identifier: GPL-2.0-only
/* from_wire: what arrives on the node's uplink. Only packets for this node's endpoints are
 * Weft's; everything else is the host's own and goes to its stack untouched. */
#include "lib/forward.h"

/* Sources that no host has on a wire (RFC 6890): this network, loopback, multicast, reserved. */
ALWAYS_INLINE int is_martian(const struct weft_pkt *p)
{
	if (p->family == 4)
		return p->src.b[12] == 0 || p->src.b[12] == 127 || p->src.b[12] >= 224;
	return p->src.b[0] == 0xff || (!p->src.d[0] && !p->src.w[2] && bpf_ntohl(p->src.w[3]) <= 1);
}

ALWAYS_INLINE int is_link_local(const struct weft_pkt *p)
{
	if (p->family == 4)
		return p->src.b[12] == 169 && p->src.b[13] == 254;
	return addr_is_link_local6(&p->src);
}

/* Whether the source's node had the right to send the packet as it came: a sealed one only from
 * its own pods, under their identity, or from its host; a plain one only what a policy names. */
SUBPROGRAM int check_origin(const struct weft_config *cfg, const struct weft_pkt *p)
{
	const struct weft_route *from;

	if (!cfg || !p)
		return REASON_INTERNAL;
	from = route_of(&p->src);
	if (p->node) {
		if (!from)
			return p->identity == IDENTITY_HOST ? REASON_NONE : REASON_INNER_SOURCE;
		if (from->node != p->node || !(from->flags & ROUTE_HOST) != (p->identity != IDENTITY_HOST))
			return REASON_INNER_SOURCE;
		return REASON_NONE;
	}
	if (!from || !from->node || !must_seal(cfg, p))
		return REASON_NONE;
	return REASON_PLAINTEXT;
}

/* What came for the host itself, or to be routed by it. */
SUBPROGRAM int to_host(const struct weft_config *cfg, const struct weft_pkt *p)
{
	const struct weft_route *r;
	int reason;

	if (!cfg || !p || !weft_sealing || !(cfg->flags & CONFIG_SEAL))
		return CTX_PASS;
	r = route_of(&p->src);
	/* Nodes talk to each other in plain: handshakes, ESP itself, the host's own services. */
	if (!p->node && r && r->flags & ROUTE_HOST)
		return CTX_PASS;
	reason = check_origin(cfg, p);
	if (reason)
		return drop(cfg, p, reason);
	if (p->node) {
		r = route_of(&p->dst);
		if (r && !r->node)
			return drop(cfg, p, REASON_NO_ENDPOINT);
	}
	return CTX_PASS;
}

SUBPROGRAM int from_wire_slow(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p, int reason)
{
	struct weft_cached c = {};
	struct weft_endpoint *to;

	if (!cfg || !p)
		return CTX_PASS;
	/* What came sealed is for pods or this host and must be whole. */
	if (weft_sealing && p->node && (reason || !p->family))
		return drop(cfg, p, reason ?: REASON_BAD_IP_HEADER);
	if (!p->family)
		return CTX_PASS;
	to = bpf_map_lookup_elem(&weft_ep_addr, &p->dst);
	if (!to)
		return to_host(cfg, p);
	p->slot = to->slot;
	trace(p, STEP_ENDPOINT, to->slot, to->ifindex, 0);
	if (reason)
		return drop(cfg, p, reason);
	if (bpf_map_lookup_elem(&weft_ep_addr, &p->src))
		return drop(cfg, p, REASON_FOREIGN_SOURCE);
	if (is_martian(p))
		return drop(cfg, p, REASON_MARTIAN);
	if (is_link_local(p))
		return drop(cfg, p, REASON_LINK_LOCAL);
	if (weft_sealing && cfg->flags & CONFIG_SEAL) {
		reason = check_origin(cfg, p);
		if (reason)
			return drop(cfg, p, reason);
		c.node = p->node;
		c.identity = p->identity;
	}
	return forward(ctx, cfg, p, &c, p->ifindex);
}

/* Opens the packet if it is sealed. Returns 1, and what to do with it, if that has been refused. */
ALWAYS_INLINE int refused(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p, int *act)
{
	int reason;

	if (!weft_sealing || !(cfg->flags & CONFIG_SEAL))
		return 0;
	reason = open(ctx, cfg, p);
	if (reason > 0) {
		*act = drop(cfg, p, reason);
		return 1;
	}
	*p = (struct weft_pkt){
	    .hook = HOOK_FROM_WIRE, .direction = DIR_INGRESS, .node = p->node, .identity = p->identity};
	return 0;
}

SEC(WEFT_SEC)
int weft_from_wire(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_FROM_WIRE, .direction = DIR_INGRESS};
	const struct weft_config *cfg = config();
	int reason, act;

	if (!cfg)
		return CTX_PASS;
	if (refused(ctx, cfg, &p, &act))
		return act;
	reason = parse(ctx, &p);
	if (!reason && use_cached(ctx, cfg, &p, 0, &act))
		return act;
	return finish(ctx, cfg, &p, from_wire_slow(ctx, cfg, &p, reason));
}

char _license[] SEC("license") = "GPL";
