/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_ROUTE_H
#define WEFT_ROUTE_H

#include "provenance.h"
#include "sa.h"
#include "trace.h"

/* Decides by the destination alone. Returns a drop reason. */
SUBPROGRAM int route(const struct weft_config *cfg, const struct weft_pkt *p, struct weft_cached *c)
{
	const struct weft_peer *peer;
	struct weft_endpoint *to;
	struct weft_route *r;
	struct weft_nexthop *node;
	__u32 index;

	if (!cfg || !p || !c)
		return REASON_INTERNAL;
	c->verdict = VERDICT_STACK;
	to = endpoint_at(p->network, &p->dst);
	if (to) {
		trace(p, STEP_TO_LOCAL, to->slot, to->ifindex, 0);
		c->dst_slot = to->slot;
		/* The host's stack would look the address up in the cluster's network. */
		if (CTX_IS_XDP && !(to->flags & ENDPOINT_XDP_OUT))
			return p->network ? REASON_OTHER_NETWORK : REASON_NONE;
		if (cfg->flags & CONFIG_STACK && !p->network)
			return REASON_NONE;
		c->verdict = VERDICT_LOCAL;
		c->out_ifindex = to->ifindex;
		c->mtu = to->mtu;
		mac_copy(c->dmac, to->mac);
		mac_copy(c->smac, to->gateway_mac);
		return REASON_NONE;
	}
	r = route_in(p->network, &p->dst);
	/* Nothing of another network leaves this node: neither the wire nor the host's stack tells
	 * which a packet is of. */
	if (p->network && !(r && is_own_range(r)))
		return REASON_OTHER_NETWORK;
	if (!r) {
		trace(p, STEP_NO_ROUTE, 0, 0, 0);
		return REASON_NONE;
	}
	if (r->flags & ROUTE_NO_NODE)
		return REASON_NO_NODE;
	if (!r->node)
		return r->flags & (ROUTE_HOST | ROUTE_OPEN) ? REASON_NONE : REASON_NO_ENDPOINT;
	index = r->node * 2 + (p->family == 6);
	if (weft_sealing && must_seal(cfg, p)) {
		peer = peer_of(r->node);
		if (!peer || !peer->epoch)
			return REASON_NO_KEY;
		trace(p, STEP_SEAL, r->node, peer->epoch, c->identity);
		c->flags |= CACHED_SEAL;
		c->node = r->node;
		c->mtu = peer->mtu;
		index = r->node * 2 + (peer->family == 6);
	} else if (r->flags & ROUTE_HOST) {
		return REASON_NONE;
	}
	node = bpf_map_lookup_elem(&weft_nexthops, &index);
	if (!node)
		return REASON_INTERNAL;
	trace(p, STEP_TO_NODE, r->node, node->ifindex, 0);
	if (c->flags & CACHED_SEAL && !node->ifindex)
		return REASON_NO_NEXT_HOP;
	/* What is to be sealed stays out of the host's stack if it can: send_sealed has the kernel
	 * resolve. */
	if (!(node->flags & NEXTHOP_RESOLVED) && (CTX_IS_XDP || !(c->flags & CACHED_SEAL))) {
		trace(p, STEP_NO_NEIGHBOR, r->node, 0, 0);
		return REASON_NONE;
	}
	if (cfg->flags & CONFIG_STACK || (CTX_IS_XDP && !(node->flags & NEXTHOP_XDP_OUT)))
		return REASON_NONE;
	c->verdict = VERDICT_REMOTE;
	c->out_ifindex = node->ifindex;
	if (!(c->flags & CACHED_SEAL))
		c->mtu = node->mtu;
	mac_copy(c->dmac, node->dmac);
	mac_copy(c->smac, node->smac);
	return REASON_NONE;
}

#endif
