/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_PROVENANCE_H
#define WEFT_PROVENANCE_H

#include "exempt.h"
#include "skb.h"
#include "tag.h"

/* Provenance: what the hook at which a packet came in knows about its sender, for the hook at which
 * the packet leaves the host's stack. Addresses may have been translated in between, so they prove
 * nothing.
 *
 * It has two parts. The kernel itself keeps the interface that a packet came in by (skb_iif; 0 for
 * what this host sends), and nobody outside the kernel can set it in this network namespace. What
 * comes from another one past this host's stack, as a macvlan, ipvlan or tap on top of an uplink
 * sends, may have any: it is told by its route and its socket, see skb.h. What an interface does
 * not tell, a tag in skb->tc_index does, which forwarding, translation, fragmentation and
 * reassembly keep, and which nothing else in a current kernel writes but the end of a TC chain
 * (tag_put): skb->mark is left to others (kube-proxy, Cilium, Istio, policy routing). Unlike the
 * mark, tc_index is not cleared when a packet leaves a network namespace, so a tag counts only
 * together with an interface whose hook writes it on every packet. See enum weft_tag for its bits.
 */

enum weft_origin_kind {
	ORIGIN_HOST,	 /* this host's own processes and kernel */
	ORIGIN_ENDPOINT, /* an endpoint of this node */
	ORIGIN_OPENED,	 /* another node, sealed */
	ORIGIN_WIRE,	 /* an uplink, not sealed */
	ORIGIN_OTHER,	 /* an interface without hooks */
	ORIGIN_ROUTED,	 /* a hook of Weft's has decided already */
};

struct weft_origin {
	__u32 kind;
	__u32 identity;
	__u16 slot;
	__u16 reply; /* from_pod has judged an endpoint's packet as a reply */
};

/* The handle of an identity that a peer sealed a packet under. */
ALWAYS_INLINE __u16 handle_of(__u32 node, __u32 identity)
{
	struct weft_peer_id key = {.node = node, .identity = identity};
	__u16 *handle;

	if (identity == IDENTITY_HOST)
		return IDENTITY_REMOTE_HOST;
	if (identity < FIRST_HANDLE)
		return identity;
	handle = bpf_map_lookup_elem(&weft_peer_ids, &key);
	return handle ? TAG_VALUE(*handle) : IDENTITY_UNKNOWN;
}

ALWAYS_INLINE __u32 identity_of_handle(__u32 handle)
{
	__u32 *identity;

	if (handle < FIRST_HANDLE)
		return handle;
	identity = bpf_map_lookup_elem(&weft_handles, &handle);
	return identity ? *identity : IDENTITY_UNKNOWN;
}

/* A chained pod's packets reach the stack by its bridge. */
ALWAYS_INLINE int origin_by_bridge(__u32 iif, __u32 tag, struct weft_origin *o)
{
	struct weft_ep_slot *s;
	__u32 slot = TAG_SLOT(tag);

	if (TAG_KIND(tag) != TAG_ENDPOINT)
		return 0;
	s = bpf_map_lookup_elem(&weft_ep_slot, &slot);
	if (!s || s->bridge != iif)
		return 0;
	o->kind = ORIGIN_ENDPOINT;
	o->identity = s->identity;
	o->slot = slot;
	o->reply = !!(tag & TAG_REPLY);
	return 1;
}

/* Who sent a packet in the host's stack, by the interface that it came in by and its tag. */
ALWAYS_INLINE void origin_find(const struct weft_config *cfg, __u32 iif, __u32 tag,
			       struct weft_origin *o)
{
	struct weft_endpoint *ep;
	int routed = TAG_KIND(tag) == TAG_ROUTED;

	o->slot = o->reply = 0;
	o->identity = IDENTITY_WORLD;
	o->kind = ORIGIN_OTHER;
	if (!iif) {
		o->kind = ORIGIN_HOST;
		o->identity = IDENTITY_HOST;
		return;
	}
	ep = bpf_map_lookup_elem(&weft_ep_if, &iif);
	if (ep) {
		o->kind = routed ? ORIGIN_ROUTED : ORIGIN_ENDPOINT;
		o->identity = ep->identity;
		o->slot = ep->slot;
		/* Behind an XDP hook, tag_in has left this out: the flow table tells then. */
		o->reply =
		    TAG_KIND(tag) == TAG_ENDPOINT && TAG_SLOT(tag) == ep->slot && tag & TAG_REPLY;
		return;
	}
	if (iif == cfg->net_ifindex) {
		o->kind = routed ? ORIGIN_ROUTED : ORIGIN_OTHER;
		return;
	}
	if (!bpf_map_lookup_elem(&weft_uplinks, &iif)) {
		origin_by_bridge(iif, tag, o);
		return;
	}
	o->kind = routed ? ORIGIN_ROUTED : ORIGIN_WIRE;
	if (TAG_KIND(tag) == TAG_OPENED) {
		o->kind = ORIGIN_OPENED;
		o->identity = identity_of_handle(TAG_VALUE(tag));
	}
}

/* Whether a source is another node's own address, also one whose object is missing: nodes talk to
 * each other in cleartext. */
ALWAYS_INLINE int is_other_node(const struct weft_route *from)
{
	return from && from->flags & ROUTE_HOST && (from->node || from->flags & ROUTE_NO_NODE);
}

/* Whether a route is that of this node's own pods. Nothing for them leaves the host, whatever way
 * the kernel has found: its routes may be those of another time. */
ALWAYS_INLINE int is_own_range(const struct weft_route *r)
{
	return !r->node && !(r->flags & (ROUTE_HOST | ROUTE_NO_NODE));
}

/* Whether an endpoint of this node is behind an interface that is not its own: a chained pod,
 * behind its bridge. */
ALWAYS_INLINE int is_behind(const struct weft_endpoint *ep, __u32 ifindex)
{
	__u32 slot = ep->slot;
	struct weft_ep_slot *s = bpf_map_lookup_elem(&weft_ep_slot, &slot);

	return s && s->bridge == ifindex;
}

/* Whether a packet to another node's own address is of a host or the world, which send there in
 * cleartext. What pods send there is sealed, and not let out when the pod is gone: its interface
 * tells nothing any more, and the packet may have waited for a neighbour. While the range is open,
 * somebody else has addresses in it. */
ALWAYS_INLINE int is_of_no_pod(const struct weft_pkt *p, const struct weft_origin *o,
			       const struct weft_endpoint *from)
{
	const struct weft_route *range;

	if (from)
		return 0;
	if (o->kind == ORIGIN_HOST)
		return 1;
	if (o->kind != ORIGIN_WIRE && o->kind != ORIGIN_OTHER)
		return 0;
	range = route_of(&p->src);
	return !range || !is_own_range(range) || range->flags & ROUTE_OPEN;
}

/* Whether what came in cleartext may have a source of that route. */
ALWAYS_INLINE int check_plain_source(const struct weft_config *cfg, const struct weft_pkt *p,
				     const struct weft_route *from)
{
	if (!from)
		return REASON_NONE;
	if (from->flags & ROUTE_NO_NODE)
		return REASON_NO_NODE;
	if (!from->node)
		return REASON_FOREIGN_SOURCE;
	return weft_sealing && must_seal(cfg, p) ? REASON_PLAINTEXT : REASON_NONE;
}

/* Whether what is neither this host's nor an endpoint's may have the source address that it has. */
SUBPROGRAM int check_outside_source(const struct weft_config *cfg, const struct weft_pkt *p)
{
	const struct weft_route *from;

	if (!cfg || !p)
		return REASON_INTERNAL;
	if (endpoint_at(NETWORK_CLUSTER, &p->src))
		return REASON_FOREIGN_SOURCE;
	from = route_of(&p->src);
	/* This host's own address: the host has translated the source, and who forges it is met by
	 * pre_routing. Or one of a range that is shared with somebody else on this node. */
	if (from && !from->node && !(from->flags & ROUTE_NO_NODE) &&
	    from->flags & (ROUTE_HOST | ROUTE_OPEN))
		return REASON_NONE;
	return check_plain_source(cfg, p, from);
}

#ifndef WEFT_XDP
ALWAYS_INLINE void origin_of(weft_ctx *ctx, const struct weft_config *cfg, struct weft_origin *o)
{
	origin_find(cfg, ctx->ingress_ifindex, ctx->tc_index, o);
	if (o->kind == ORIGIN_HOST && !skb_is_hosts(ctx, cfg)) {
		o->kind = ORIGIN_OTHER;
		o->identity = IDENTITY_WORLD;
	}
}

/* The same for what leaves by an uplink. An interface on top of it sends there past this host's
 * stack, and its packets keep the interface and the tag that another network namespace gave them.
 * Only what a hook has decided passes unasked: it is not sealed any more. */
ALWAYS_INLINE void origin_of_leaving(weft_ctx *ctx, const struct weft_config *cfg,
				     struct weft_origin *o)
{
	origin_of(ctx, cfg, o);
	if (o->kind == ORIGIN_ROUTED)
		return;
	if (skb_is_routed(ctx) && !(o->kind == ORIGIN_HOST && skb_may_be_ipvlans(ctx)))
		return;
	o->kind = ORIGIN_OTHER;
	o->identity = IDENTITY_WORLD;
	o->slot = o->reply = 0;
}

#endif

#endif
