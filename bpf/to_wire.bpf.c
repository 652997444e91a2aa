// SPDX-License-Identifier: GPL-2.0-only
/* to_wire: what the host's stack sends to the wire, on the uplink's egress. TC only. A flow of a
 * pod of this node is the stack's then (it may have been translated: a Service's address on its way
 * out), so its replies must go through the stack too. And nothing gets past that must be sealed:
 * what the stack sends to other nodes' pods, and for this node's pods, goes into the segmentation
 * veth, under the identity of who sent it. */
#include "lib/forward.h"

/* Whether who sent the packet may send from that source. Returns a drop reason. */
ALWAYS_INLINE int check_sender(const struct weft_config *cfg, const struct weft_pkt *p,
			       const struct weft_origin *o, const struct weft_endpoint *ep)
{
	/* The host may speak for its pods: a proxy that keeps their addresses. */
	if (o->kind == ORIGIN_HOST)
		return REASON_NONE;
	if (ep && (o->kind != ORIGIN_ENDPOINT || ep->slot != o->slot))
		return REASON_FOREIGN_SOURCE;
	return REASON_NONE;
}

/* Whether this host may seal in its own name: only from an address that the other nodes know as
 * its, or the answer would be the world's and travel in cleartext. */
ALWAYS_INLINE int check_host(const struct weft_pkt *p)
{
	const struct weft_route *from = route_of(&p->src);

	return from && !from->node && from->flags == ROUTE_HOST ? REASON_NONE
								: REASON_UNLISTED_SOURCE;
}

/* What a packet that is to be sealed needs besides. The world's packets, which this host relays,
 * must not be in a cluster address's name, whether sealed to this node or in cleartext. */
ALWAYS_INLINE int check_relayed(const struct weft_config *cfg, const struct weft_pkt *p,
				const struct weft_origin *o)
{
	int reason;

	if (o->kind == ORIGIN_HOST || o->kind == ORIGIN_ENDPOINT)
		return REASON_NONE;
	reason = check_outside_source(cfg, p);
	return reason && o->kind == ORIGIN_OPENED ? REASON_INNER_SOURCE : reason;
}

/* Whether a packet to another node's own address may be readable: it is a host's or the world's,
 * and no error that quotes what that node has sent sealed. */
ALWAYS_INLINE int is_between_hosts(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
				   const struct weft_origin *o, const struct weft_endpoint *ep)
{
	return is_of_no_pod(p, o, ep) &&
	       !(o->kind == ORIGIN_HOST && icmp_quotes_sealed(ctx, cfg, p));
}

/* Whether a packet is for this node's own pods and must not leave: by its range, or by an address
 * outside of all ranges. Only a chained pod whose bridge the uplink is may be behind it. */
ALWAYS_INLINE int is_for_own(const struct weft_pkt *p, const struct weft_route *r)
{
	const struct weft_endpoint *to;

	if (r && !is_own_range(r))
		return 0;
	to = endpoint_at(NETWORK_CLUSTER, &p->dst);
	return to ? !is_behind(to, p->ifindex) : r != NULL;
}

/* Who pays for a packet's place in the sealer's queue: who has sent it, whatever its source address
 * has become. */
ALWAYS_INLINE __u32 whose_share(const struct weft_origin *o)
{
	if (o->kind == ORIGIN_ENDPOINT)
		return o->slot;
	return o->kind == ORIGIN_HOST ? 0 : SHARE_OTHERS;
}

/* Returns 1, and what to do, if the packet must not leave as it is. */
ALWAYS_INLINE int must_divert(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			      const struct weft_origin *o, const struct weft_endpoint *ep, int *act)
{
	const struct weft_route *r = route_of(&p->dst);
	__u32 identity = IDENTITY_WORLD;
	const struct weft_peer *peer;
	int reason;

	if (is_for_own(p, r)) {
		*act = drop(cfg, p, REASON_NO_ENDPOINT);
		return 1;
	}
	if (!r || (r->flags & ROUTE_HOST && is_between_hosts(ctx, cfg, p, o, ep)))
		return 0;
	if (r->flags & ROUTE_NO_NODE) {
		*act = drop(cfg, p, REASON_NO_NODE);
		return 1;
	}
	if (!r->node || !must_seal(cfg, p))
		return 0;
	if (o->kind == ORIGIN_HOST)
		identity = ep ? ep->identity : IDENTITY_HOST;
	else if (o->kind == ORIGIN_ENDPOINT)
		identity = o->identity;
	peer = peer_of(r->node);
	reason = identity == IDENTITY_HOST ? check_host(p) : check_relayed(cfg, p, o);
	if (!reason && (!peer || !peer->epoch))
		reason = REASON_NO_KEY;
	else if (!reason && p->l3_size > peer->mtu)
		reason = REASON_TOO_BIG;
	*act = reason ? drop(cfg, p, reason)
		      : to_be_cut(ctx, cfg, p, whose_share(o), r->node, identity);
	return 1;
}

/* Whether the policy of the endpoint that sent the packet lets it. Its source may have been
 * translated, not its provenance. Returns a drop reason. */
ALWAYS_INLINE int check_policy(const struct weft_config *cfg, struct weft_pkt *p,
			       const struct weft_origin *o, int malformed)
{
	int reason;

	if (!(cfg->flags & CONFIG_POLICY) || o->kind != ORIGIN_ENDPOINT || !policy_in(o->slot))
		return REASON_NONE;
	p->slot = o->slot;
	p->reply = o->reply;
	if (malformed)
		return malformed;
	if (p->error)
		return REASON_NONE; /* from_pod has judged what it is about */
	reason = frag_check(p);
	return reason ?: policy_leaving(cfg, p, POLICY_SLOTS(o->slot, 0));
}

SEC(WEFT_SEC)
int weft_to_wire(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_TO_WIRE, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	struct weft_endpoint *ep;
	struct weft_origin o;
	int malformed, reason, act;

	if (!cfg)
		return CTX_DROP;
	/* Before the parser: most of what leaves has been decided by another hook. */
	origin_of_leaving(ctx, cfg, &o);
	tag_clear(ctx);
	if (o.kind == ORIGIN_ROUTED)
		return CTX_PASS;
	malformed = parse(ctx, &p);
	if (!p.family)
		return malformed && is_ip(&p) ? drop(cfg, &p, malformed) : CTX_PASS;
	ep = endpoint_at(NETWORK_CLUSTER, &p.src);
	reason = check_sender(cfg, &p, &o, ep);
	if (reason)
		return drop(cfg, &p, reason);
	if (ep)
		p.slot = ep->slot;
	if (!malformed && skb_overwrites(ctx, &p))
		return drop(cfg, &p, REASON_CHECKSUM_OFFSET);
	reason = check_policy(cfg, &p, &o, malformed);
	if (reason)
		return drop(cfg, &p, reason);
	if (ep && !malformed)
		note_from_stack(cfg, &p);
	/* Also what could not be read: only its addresses count here. */
	if (weft_sealing && must_divert(ctx, cfg, &p, &o, ep, &act))
		return act;
	return CTX_PASS;
}

char _license[] SEC("license") = "GPL";
