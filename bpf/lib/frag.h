/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_FRAG_H
#define WEFT_FRAG_H

#include "flow.h"

/* The place among the owner's that a datagram has. The other side's address tells one of 8 sets, by
 * weights that nobody outside knows: who floods a pod with first fragments makes the pod forget its
 * own datagrams and those of one sender in 8. In a set, datagrams that are numbered one after
 * another have places of their own.
 */
ALWAYS_INLINE __u16 frag_place(const struct weft_frag_id *id, __u32 direction)
{
	const union weft_addr *other = direction == DIR_INGRESS ? &id->src : &id->dst;
	const union weft_addr *own = direction == DIR_INGRESS ? &id->dst : &id->src;
	__u64 set = WEIGHED(other->d[0], 0) + WEIGHED(other->d[1], 1);
	__u32 number = bpf_ntohl(id->id);

	/* Mixed once more: by a sum alone neighbouring addresses would share a set under one choice
	 * of weights in 100. */
	set = WEIGHED(WEIGHED(set, 2), 3) >> 48;
	/* The identification of IPv4 is in the upper half. */
	number = (number ^ number >> 16) + id->proto + own->b[15];
	return (set * (WEFT_OWNER_FRAGMENTS / FRAGMENTS_OF_OTHER) >> 16) * FRAGMENTS_OF_OTHER +
	       number % FRAGMENTS_OF_OTHER;
}

ALWAYS_INLINE int frag_same(const struct weft_frag_id *a, const struct weft_frag_id *b)
{
	return addr_equal(&a->src, &b->src) && addr_equal(&a->dst, &b->dst) && a->id == b->id &&
	       a->proto == b->proto;
}

ALWAYS_INLINE void frag_remember(const struct weft_pkt *p, const struct weft_frag_key *key,
				 const struct weft_frag *old, const struct weft_frag_id *id,
				 __u64 now)
{
	struct weft_frag f = {.id = *id,
			      .time_ns = now,
			      .sport = p->sport,
			      .dport = p->dport,
			      .first_end = p->frag_len,
			      .proto = p->proto};
	struct weft_owner *o = owner_at(key->owner);

	if (weft_tracing)
		return;
	if (o && old && !frag_same(&old->id, id) && now - old->time_ns < FRAGMENT_YOUNG)
		__sync_fetch_and_add(&o->fragments_evicted, 1);
	bpf_map_update_elem(&weft_frags, key, &f, BPF_ANY);
}

/* Gives a later fragment the ports of its first (RFC 791, RFC 8200 section 4.5), so that it belongs
 * to the same flow, meets the same policy and takes the same path. Without its first fragment, or
 * overlapping it, it is refused: nothing that was not checked passes. Each owner has places of its
 * own for what is to be remembered. */
SUBPROGRAM int frag_check(struct weft_pkt *p)
{
	struct weft_frag_key key = {};
	struct weft_frag_id id = {};
	struct weft_frag *first;
	__u64 now;

	if (!p)
		return REASON_INTERNAL;
	if (p->frag == FRAG_NONE)
		return REASON_NONE;
	id.src = p->src;
	id.dst = p->dst;
	id.id = p->frag_id;
	id.proto = p->frag_proto;
	key.owner = owner_of(p);
	key.place = frag_place(&id, p->direction);
	now = clock_mono();
	first = bpf_map_lookup_elem(&weft_frags, &key);
	if (p->frag == FRAG_FIRST) {
		frag_remember(p, &key, first, &id, now);
		return REASON_NONE;
	}
	if (!first || now - first->time_ns > TIMEOUT_FRAGMENT)
		return REASON_FRAGMENT_UNKNOWN;
	if (p->frag_off < first->first_end && frag_same(&first->id, &id))
		return REASON_FRAGMENT_OVERLAP;
	p->sport = first->sport;
	p->dport = first->dport;
	p->proto = first->proto;
	/* Last, since the entry may be given to another datagram at any time. */
	load_fence();
	return frag_same(&first->id, &id) ? REASON_NONE : REASON_FRAGMENT_UNKNOWN;
}

#endif
