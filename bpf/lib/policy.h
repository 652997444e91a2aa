/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_POLICY_H
#define WEFT_POLICY_H

#include <linux/in.h>
#include "exempt.h"
#include "flow.h"

/* Network policy: whether a conversation may be, by the policy sets of those of its two ends that
 * are endpoints here; another node judges its own. What counts is who began it: replies pass
 * because their conversation may be, and are cut with it. It is judged with the addresses that the
 * endpoint sees on the wire it speaks to, after all translation: where a hook decides itself, at
 * once; what goes through the host's stack, by the hook at which it leaves that. */

/* The initiator's slot and the responder's, or the sender's and the receiver's: 0 for who is not
 * here. */
#define POLICY_SLOTS(from, to)	    ((__u32)(from) << 16 | (to))
#define POLICY_HOW(direction, port) ((direction) << 16 | (port))
/* In POLICY_HOW: nothing but an address tells who the peer is. */
#define POLICY_UNAUTHENTICATED (1U << 24)

enum policy_began {
	BEGAN_SENDER,  /* also what is new */
	BEGAN_OTHER,   /* the packet is a reply */
	BEGAN_UNKNOWN, /* either, in the middle of a TCP connection: see either_until */
};

/* What a packet is to the conversation that is judged. */
enum policy_part {
	PART_REPLY = 1 << 0,  /* the other end began it */
	PART_QUOTED = 1 << 1, /* an ICMP error quotes it: it has not come now */
};

ALWAYS_INLINE struct weft_judgement *judgement(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weft_judgement, &zero);
}

ALWAYS_INLINE void judgement_range(struct weft_judgement *j, __u32 network,
				   const union weft_addr *addr)
{
	j->range.prefixlen = ROUTE_KEY_BITS;
	j->range.network = network;
	__builtin_memcpy(j->range.addr, addr, sizeof(j->range.addr));
}

/* The identity of who has an address; otherwise is what else is known of that one. An address in
 * one of the cluster's ranges whose endpoint nobody has named is nobody's: no rule but those for
 * anybody, or for the address, is about it. */
SUBPROGRAM int identity_at(__u32 network, const union weft_addr *addr, __u32 otherwise)
{
	struct weft_judgement *j = judgement();
	const struct weft_endpoint *ep;
	const struct weft_route *r;
	const __u32 *identity;

	if (!j || !addr)
		return IDENTITY_UNKNOWN;
	j->addr.network = network;
	j->addr.addr = *addr;
	ep = bpf_map_lookup_elem(&weft_ep_addr, &j->addr);
	if (ep)
		return ep->identity;
	identity = bpf_map_lookup_elem(&weft_addr_ids, &j->addr);
	if (identity)
		return *identity;
	if (otherwise)
		return otherwise;
	judgement_range(j, network, addr);
	r = bpf_map_lookup_elem(&weft_routes, &j->range);
	if (!r)
		return IDENTITY_WORLD;
	if (!(r->flags & ROUTE_HOST))
		return IDENTITY_UNKNOWN;
	return r->node || r->flags & ROUTE_NO_NODE ? IDENTITY_REMOTE_HOST : IDENTITY_HOST;
}

/* Takes the entry for a peer unless what was found so far goes before: by precedence, then what
 * denies, then the rule of the lower number, which only explains. */
ALWAYS_INLINE void policy_match(struct weft_policy_key *key, __u32 peer,
				const struct weft_policy_entry **best)
{
	const struct weft_policy_entry *entry;

	key->peer = peer;
	entry = bpf_map_lookup_elem(&weft_policy, key);
	if (!entry)
		return;
	if (*best && (entry->precedence < (*best)->precedence ||
		      (entry->precedence == (*best)->precedence &&
		       (entry->verdict > (*best)->verdict ||
			(entry->verdict == (*best)->verdict && entry->rule > (*best)->rule)))))
		return;
	*best = entry;
}

/* What a set says of a peer: by its identity, by its address, as anybody, and as one that is not
 * authenticated. A set without an answer denies. how: POLICY_HOW. Returns a drop reason, and the
 * rule in p. */
SUBPROGRAM int policy_ask(struct weft_pkt *p, __u32 set, __u32 how, __u32 identity,
			  const union weft_addr *peer)
{
	const struct weft_policy_entry *best = NULL;
	const struct weft_config *cfg = config();
	struct weft_judgement *j = judgement();
	const __u32 *class;
	int allowed;

	if (!cfg || !j || !p || !peer)
		return REASON_INTERNAL;
	j->entry.prefixlen = POLICY_KEY_BITS;
	j->entry.set = set;
	j->entry.direction = how >> 16;
	j->entry.port = how;
	j->entry.protocol = p->proto;
	if (!(set & POLICY_SET_NO_ANYBODY && cfg->flags & CONFIG_MARKED_SETS))
		policy_match(&j->entry, 0, &best);
	if (identity)
		policy_match(&j->entry, identity, &best);
	/* The flag is read after the set's number and the identity: while it is true of one of
	 * these, no address has a class that they could be about. */
	if (!(cfg->flags & CONFIG_NO_CLASSES)) {
		/* Ranges of addresses are the same in every network: policies do not know of
		 * networks. */
		judgement_range(j, NETWORK_CLUSTER, peer);
		class = bpf_map_lookup_elem(&weft_classes, &j->range);
		if (class && *class)
			policy_match(&j->entry, *class, &best);
	}
	if (how & POLICY_UNAUTHENTICATED)
		policy_match(&j->entry, PEER_UNAUTHENTICATED, &best);
	allowed = best && best->verdict == POLICY_ALLOW;
	p->rule = best ? best->rule : 0;
	trace(p, STEP_POLICY, j->entry.direction, identity, p->rule << 1 | allowed);
	if (!allowed)
		return REASON_POLICY_DENIED;
	p->rule = 0;
	return REASON_NONE;
}

ALWAYS_INLINE int has_ports(const struct weft_pkt *p)
{
	return p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP || p->proto == IPPROTO_SCTP ||
	       p->proto == IPPROTO_UDPLITE;
}

/* Whether an identity that the hooks have given to a sender (p->sender) was proven: by the
 * interface that it came in by, or by the key of the node that sealed it. The world, which another
 * node's host may relay sealed, has proven nothing. */
ALWAYS_INLINE int is_proven(__u32 sender)
{
	return sender && sender != IDENTITY_WORLD && sender != IDENTITY_UNMANAGED;
}

/* Whether the peer that began a conversation, who is no endpoint here, is authenticated. Of a
 * packet of its own the hook says so. A reply, or a quote, tells only how its packets have to come:
 * sealed, if it is on another node and what is sent to it is; what is neither must have been proven
 * when the flow was made, and comes from an address of this host, which has translated it. */
SUBPROGRAM int is_authenticated(const struct weft_pkt *p, __u32 part, const union weft_addr *peer,
				__u32 initiator)
{
	const struct weft_config *cfg = config();
	const struct weft_route *r;

	if (!p || !peer || !cfg)
		return 0;
	if (!part)
		return is_proven(p->sender);
	r = route_in(p->network, peer);
	if (!r || !r->node)
		return is_proven(initiator);
	return weft_sealing && initiator != IDENTITY_WORLD && must_seal(cfg, p);
}

/* Judges the conversation that p is of, as its initiator's. slots are the sender's and the
 * receiver's, part is p's (enum policy_part), initiator is the identity under which that one was
 * judged before, 0 if it was not. What this host itself begins is allowed: kubelet's probes. So is
 * what an endpoint sends to itself. */
SUBPROGRAM int policy_judge(struct weft_pkt *p, __u32 slots, __u32 part, __u32 initiator)
{
	__u32 reply = part & PART_REPLY;
	__u32 from = reply ? slots & 0xffff : slots >> 16,
	      to = reply ? slots >> 16 : slots & 0xffff;
	const struct weft_ep_slot *src, *dst;
	__u32 port = 0, identity, how;
	int reason;

	if (!p)
		return REASON_INTERNAL;
	src = bpf_map_lookup_elem(&weft_ep_slot, &from);
	dst = bpf_map_lookup_elem(&weft_ep_slot, &to);
	if (!src || !dst)
		return REASON_INTERNAL;
	if (from && from == to)
		return REASON_NONE;
	if (has_ports(p))
		port = reply ? p->sport : p->dport;
	if (src->sets[DIR_EGRESS]) {
		identity = to ? dst->identity : reply ? p->sender : p->local ? IDENTITY_HOST : 0;
		if (!to && !identity)
			identity = identity_at(p->network, reply ? &p->src : &p->dst, 0);
		reason = policy_ask(p, src->sets[DIR_EGRESS], POLICY_HOW(DIR_EGRESS, port),
				    identity, reply ? &p->src : &p->dst);
		if (reason)
			return reason;
	}
	if (dst->sets[DIR_INGRESS]) {
		identity = from ? src->identity : reply ? 0 : p->sender;
		if (!from && !identity)
			identity = identity_at(p->network, reply ? &p->dst : &p->src, initiator);
		if (identity == IDENTITY_HOST)
			return REASON_NONE;
		how = POLICY_HOW(DIR_INGRESS, port);
		if (!from && !is_authenticated(p, part, reply ? &p->dst : &p->src, initiator))
			how |= POLICY_UNAUTHENTICATED;
		return policy_ask(p, dst->sets[DIR_INGRESS], how, identity,
				  reply ? &p->dst : &p->src);
	}
	return REASON_NONE;
}

ALWAYS_INLINE int policy_in(__u32 slot)
{
	const struct weft_ep_slot *ep = bpf_map_lookup_elem(&weft_ep_slot, &slot);

	return !ep || ep->sets[DIR_EGRESS] || ep->sets[DIR_INGRESS];
}

/* Who counts as having begun what the table does not know: the sender. So who may not begin a
 * connection cannot go on with one that was lost either, until who began it sends. */
ALWAYS_INLINE int began_lost(const struct weft_config *cfg, const struct weft_pkt *p, __u64 now)
{
	return p->proto == IPPROTO_TCP && now && now < cfg->either_until * NSEC_PER_SEC
		   ? BEGAN_UNKNOWN
		   : BEGAN_SENDER;
}

/* Who began the conversation that p is of (enum policy_began), and the identity under which that
 * one was judged. A SYN begins one, whatever is known of the same ports. Nothing answers a packet
 * that has not left. */
static __noinline int policy_began(const struct weft_config *cfg, const struct weft_pkt *p,
				   __u32 *initiator)
{
	struct weft_flow_ref ref;
	__u64 now = clock_mono();
	__u32 flags;

	*initiator = 0;
	if (is_syn(p))
		return BEGAN_SENDER;
	ref = flow_find(p);
	if (!ref.flow || flow_is_over(cfg, p, ref, now))
		return began_lost(cfg, p, now);
	flags = *(volatile __u32 *)&ref.flow->flags;
	*initiator = *(volatile __u32 *)&ref.flow->initiator;
	load_fence();
	/* The table may have handed the entry to another flow before it was read. */
	if (flow_find(p).flow != ref.flow)
		return began_lost(cfg, p, now);
	if (ref.dir == !!(flags & FLOW_FIRST_IS_1))
		return BEGAN_SENDER;
	return flags & FLOW_UNCONFIRMED && !p->answers ? began_lost(cfg, p, now) : BEGAN_OTHER;
}

/* Whether a packet is for this host itself. */
ALWAYS_INLINE int is_for_host(const struct weft_pkt *p)
{
	const struct weft_route *r = route_in(p->network, &p->dst);

	return r && !r->node && (r->flags & (ROUTE_HOST | ROUTE_NO_NODE)) == ROUTE_HOST;
}

/* Which end began a connection that an upgrade has lost nobody can tell: either may have. reason is
 * what was said of the sender. Sets p->reply if it is the other. */
ALWAYS_INLINE int policy_either(struct weft_pkt *p, __u32 slots, int reason)
{
	__u32 rule = p->rule;

	if (!policy_judge(p, slots, PART_REPLY, 0)) {
		p->reply = 1;
		return REASON_NONE;
	}
	p->rule = rule;
	return reason;
}

/* Judges a packet that a hook has routed (route). What the host's stack gets is judged when it
 * leaves that, except what ends there: here it is only told from what may leave without translation
 * (p->unconfirmed). A reply is judged here in any case: on this side of the stack its addresses are
 * those that its conversation was judged with. Sets p->reply. Returns a drop reason. */
SUBPROGRAM int policy_forward(const struct weft_config *cfg, struct weft_pkt *p,
			      const struct weft_cached *c)
{
	__u32 slots, initiator;
	int began, reason;

	if (!cfg || !p || !c)
		return REASON_INTERNAL;
	if (c->verdict != VERDICT_STACK && !policy_in(c->src_slot) && !policy_in(c->dst_slot))
		return REASON_NONE;
	slots = POLICY_SLOTS(c->src_slot, c->dst_slot);
	began = policy_began(cfg, p, &initiator);
	if (began == BEGAN_OTHER) {
		p->reply = 1;
		return policy_judge(p, slots, PART_REPLY, initiator);
	}
	reason = policy_judge(p, slots, 0, 0);
	if (reason && began == BEGAN_UNKNOWN)
		reason = policy_either(p, slots, reason);
	if (!reason || c->verdict != VERDICT_STACK || (p->hook == HOOK_FROM_POD && is_for_host(p)))
		return reason;
	p->unconfirmed = 1;
	p->rule = 0;
	return REASON_NONE;
}

/* The same for a packet that an ICMP error quotes, which p's addresses and ports are by now. */
SUBPROGRAM int policy_quoted(const struct weft_config *cfg, struct weft_pkt *p)
{
	const struct weft_endpoint *src, *dst;
	__u32 sender, initiator;
	int began, reason;

	if (!cfg || !p)
		return REASON_INTERNAL;
	src = endpoint_at(p->network, &p->src);
	dst = endpoint_at(p->network, &p->dst);
	began = policy_began(cfg, p, &initiator);
	sender = p->sender;
	p->sender = 0;
	reason = policy_judge(p, POLICY_SLOTS(src ? src->slot : 0, dst ? dst->slot : 0),
			      PART_QUOTED | (began == BEGAN_OTHER ? PART_REPLY : 0), initiator);
	p->sender = sender;
	return reason;
}

/* Judges what leaves the host's stack: slots are those of the endpoint that sent it, and of the one
 * that it is for. Replies have been judged where they came in, with the addresses that they had
 * there. */
SUBPROGRAM int policy_leaving(const struct weft_config *cfg, struct weft_pkt *p, __u32 slots)
{
	__u32 initiator;
	int began, reason;

	if (!cfg || !p)
		return REASON_INTERNAL;
	if (p->reply || (!policy_in(slots >> 16) && !policy_in(slots & 0xffff)))
		return REASON_NONE;
	/* What neighbours on a bridge need to find each other. */
	if (p->family == 6 && is_link_control(p) && p->ttl == 255)
		return REASON_NONE;
	began = policy_began(cfg, p, &initiator);
	if (began == BEGAN_OTHER)
		return REASON_NONE;
	reason = policy_judge(p, slots, 0, 0);
	/* from_pod has asked about the other direction. */
	if (!reason || began == BEGAN_SENDER || slots >> 16)
		return reason;
	return policy_either(p, slots, reason);
}

#endif
