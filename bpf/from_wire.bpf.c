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

SUBPROGRAM int from_wire_slow(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p, int reason)
{
	struct weft_cached c = {};
	struct weft_endpoint *to;

	if (!cfg || !p || !p->family)
		return CTX_PASS;
	to = bpf_map_lookup_elem(&weft_ep_addr, &p->dst);
	if (!to)
		return CTX_PASS;
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
	return forward(ctx, cfg, p, &c, p->ifindex);
}

SEC(WEFT_SEC)
int weft_from_wire(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_FROM_WIRE, .direction = DIR_INGRESS};
	const struct weft_config *cfg = config();
	int reason, act;

	if (!cfg)
		return CTX_PASS;
	reason = parse(ctx, &p);
	if (!reason && use_cached(ctx, cfg, &p, 0, &act))
		return act;
	return from_wire_slow(ctx, cfg, &p, reason);
}

char _license[] SEC("license") = "GPL";
