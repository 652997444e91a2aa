// SPDX-License-Identifier: GPL-2.0-only
/* to_wire: what the host's stack sends to the wire, on the uplink's egress. TC only. A flow of a
 * pod of this node is the stack's then (it may have been translated: a Service's address on its way
 * out), so its replies must go through the stack too. And nothing gets past that must be sealed:
 * what the stack sends to other nodes' pods, and for this node's pods, goes into the pair. */
#include "lib/forward.h"

/* Returns 1, and what to do, if the packet must not leave as it is. */
ALWAYS_INLINE int must_divert(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			      const struct weft_endpoint *ep, int *act)
{
	const struct weft_route *r = route_of(&p->dst);
	const struct weft_peer *peer;

	if (!r || !r->node || (r->flags & ROUTE_HOST && !ep) || !must_seal(cfg, p))
		return 0;
	peer = peer_of(r->node);
	if (!peer || !peer->epoch)
		*act = drop(cfg, p, REASON_NO_KEY);
	else if (p->l3_size > peer->mtu)
		*act = drop(cfg, p, REASON_TOO_BIG);
	else
		*act = pair_send(ctx, cfg, r->node, ep ? ep->identity : IDENTITY_HOST);
	return 1;
}

SEC(WEFT_SEC)
int weft_to_wire(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_TO_WIRE, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	struct weft_endpoint *ep;
	int reason, act;

	if (!cfg || ctx_was_routed(ctx))
		return CTX_PASS;
	reason = parse(ctx, &p);
	if (!p.family)
		return CTX_PASS;
	ep = bpf_map_lookup_elem(&weft_ep_addr, &p.src);
	if (ep && !reason) {
		p.slot = ep->slot;
		note_from_stack(cfg, &p);
	}
	/* Also what could not be read: only its addresses count here. */
	if (weft_sealing && cfg->flags & CONFIG_SEAL && must_divert(ctx, cfg, &p, ep, &act))
		return act;
	return CTX_PASS;
}

char _license[] SEC("license") = "GPL";
