/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_CELL_H
#define WEFT_CELL_H

#include <linux/in.h>
#include "clock.h"
#include "count.h"

/* Budgets in the flow table. A flow needs a cell, and there are as many cells as the table has
 * entries. While one is free, anybody may take it. When none is, a new flow takes the cell of
 * whoever holds the most of those looked at, never of an owner who holds fewer than its own or no
 * more than an equal share (flow_share). So what an owner holds up to its share is its own, what
 * others leave unused is anybody's, and a flood evicts the flood.
 *
 * Nothing here is on the fast path: a flow that exists is found by its key alone. */

/* A cell's word: its owner plus 1 in the low bits, 0 if it is free; CELL_BUSY while somebody
 * changes its key or its flow; a number that every change raises. */
#define CELL_OWNER   0xffffULL
#define CELL_BUSY    (1ULL << 16)
#define CELL_VERSION (1ULL << 17)

/* The cells that are looked at for a new flow: some behind the last that was free, because flows
 * that were made one after another also end so, then some at random, which find whoever holds the
 * most. */
#define CELLS_IN_ORDER	8
#define CELLS_AT_RANDOM 16

/* An owner above its share may give up a flow of its own, so of those few are compared: each that
 * is looked at costs several cache misses in a table of some hundred thousand, and a flood pays
 * them for every frame. */
#define CELLS_OF_OWNER 4

#define CELL_NONE 0xffffffff

/* How long nothing of the flow was seen, nanoseconds. Negative when another CPU has seen something
 * later. */
ALWAYS_INLINE __s64 flow_idle(const struct weft_flow *f, __u64 now) { return now - f->last_ns; }

ALWAYS_INLINE __s64 flow_timeout(const struct weft_flow *f, __u8 proto)
{
	switch (f->state) {
	case STATE_SYN_SENT:
	case STATE_SYN_RECEIVED:
		return TIMEOUT_TCP_SYN;
	case STATE_ESTABLISHED:
	case STATE_CLOSING:
		return TIMEOUT_TCP_OPEN;
	case STATE_CLOSED:
		return TIMEOUT_TCP_CLOSED;
	case STATE_REPLIED:
		return proto == IPPROTO_UDP ? TIMEOUT_UDP : TIMEOUT_OTHER;
	default:
		return proto == IPPROTO_UDP ? TIMEOUT_UDP_ONE_WAY : TIMEOUT_OTHER;
	}
}

ALWAYS_INLINE struct weft_cell *cell_at(__u32 family, __u32 index)
{
	if (family == 4)
		return bpf_map_lookup_elem(&weft_cells4, &index);
	return bpf_map_lookup_elem(&weft_cells6, &index);
}

ALWAYS_INLINE struct weft_flow *cell_flow(__u32 family, const struct weft_cell *cell)
{
	if (family == 4)
		return bpf_map_lookup_elem(&weft_flows4, &cell->key4);
	return bpf_map_lookup_elem(&weft_flows6, &cell->key6);
}

/* Takes the flow of a cell out of the table. Only for who holds the cell busy. Returns whether the
 * flow was still of use. */
ALWAYS_INLINE int cell_forget(__u32 family, __u32 index, const struct weft_cell *cell, __u64 now)
{
	struct weft_flow *flow = cell_flow(family, cell);
	__u8 proto = family == 4 ? cell->key4.proto : cell->key6.proto;
	int alive;

	if (!flow || flow->cell != index)
		return 0;
	alive = flow_idle(flow, now) <= flow_timeout(flow, proto);
	if (family == 4)
		bpf_map_delete_elem(&weft_flows4, &cell->key4);
	else
		bpf_map_delete_elem(&weft_flows6, &cell->key6);
	return alive;
}

ALWAYS_INLINE struct weft_owner *owner_at(__u32 owner)
{
	return bpf_map_lookup_elem(&weft_owners, &owner);
}

ALWAYS_INLINE __u32 *owner_flows(struct weft_owner *o, __u32 family)
{
	return family == 6 ? &o->flows[1] : &o->flows[0];
}

ALWAYS_INLINE void owner_charge(__u32 family, __u64 word, __u32 flows)
{
	struct weft_owner *o = owner_at((word & CELL_OWNER) - 1);

	if (word & CELL_OWNER && o)
		__sync_fetch_and_add(owner_flows(o, family), flows);
}

/* Changes the word from what it was. Who does so moves the charge, so that each is moved once. */
ALWAYS_INLINE int cell_change(__u32 family, struct weft_cell *cell, __u64 was, __u64 owner_and_busy)
{
	__u64 to = (was & ~(CELL_VERSION - 1)) + CELL_VERSION + owner_and_busy;

	if (__sync_val_compare_and_swap(&cell->word, was, to) != was)
		return 0;
	if ((was ^ to) & CELL_OWNER) {
		owner_charge(family, was, -1);
		owner_charge(family, to, 1);
	}
	return 1;
}

ALWAYS_INLINE struct weft_search *search_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weft_search, &zero);
}

/* Takes note of a cell whose flow may go. Returns 1 if there is none better. */
ALWAYS_INLINE int cell_weigh(struct weft_search *s, __u32 index, struct weft_cell *cell, __u64 word,
			     __u32 holds)
{
	struct weft_flow *flow = cell_flow(s->family, cell);
	int gone = !flow || flow->cell != index;

	if (!gone && s->best != CELL_NONE && holds == s->best_holds &&
	    flow->last_ns >= s->best_last)
		return 0;
	s->best = index;
	s->best_word = word;
	s->best_holds = holds;
	s->best_last = gone ? 0 : flow->last_ns;
	return gone;
}

static long cell_look(__u32 i, void *state)
{
	struct weft_search *s = search_get();
	__u32 index, owner, holds;
	struct weft_cell *cell;
	struct weft_owner *o;
	__u64 word;

	if (!s || !s->entries)
		return 1;
	index = (i < CELLS_IN_ORDER ? s->hand + i : bpf_get_prandom_u32()) % s->entries;
	cell = cell_at(s->family, index);
	if (!cell)
		return 1;
	word = *(volatile __u64 *)&cell->word;
	if (word & CELL_BUSY)
		return 0;
	if (!(word & CELL_OWNER)) {
		s->best = index;
		s->best_word = word;
		return 1;
	}
	owner = (word & CELL_OWNER) - 1;
	o = owner_at(owner);
	if (!o)
		return 0;
	holds = *owner_flows(o, s->family);
	if (holds <= s->share || (owner != s->owner && holds < s->holds))
		return 0;
	if (s->best != CELL_NONE && holds < s->best_holds)
		return 0;
	if (cell_weigh(s, index, cell, word, holds))
		return 1;
	return owner == s->owner && ++s->own == CELLS_OF_OWNER;
}

/* Finds a cell for a new flow and makes it the owner's, busy. Returns CELL_NONE if there is none to
 * be had; that has been counted. */
static __noinline __u32 cell_take(const struct weft_config *cfg, __u32 family, __u32 owner,
				  __u64 now)
{
	struct weft_owner *o = owner_at(owner), *loser;
	struct weft_search *s = search_get();
	struct weft_cell *cell;
	__u32 *hand;

	if (!o || !s)
		return CELL_NONE;
	hand = family == 6 ? &s->hand6 : &s->hand4;
	s->family = family;
	s->entries = cfg->flow_entries;
	s->share = cfg->flow_share;
	s->owner = owner;
	s->holds = *owner_flows(o, family);
	s->hand = *hand;
	s->best = CELL_NONE;
	s->own = 0;
	bpf_loop(CELLS_IN_ORDER + CELLS_AT_RANDOM, cell_look, NULL, 0);
	*hand = s->best - s->hand < CELLS_IN_ORDER ? s->best + 1 : s->hand + CELLS_IN_ORDER;
	cell = s->best == CELL_NONE ? NULL : cell_at(family, s->best);
	if (!cell || !cell_change(family, cell, s->best_word, (owner + 1) | CELL_BUSY)) {
		__sync_fetch_and_add(&o->flows_refused, 1);
		return CELL_NONE;
	}
	if (s->best_word & CELL_OWNER && cell_forget(family, s->best, cell, now)) {
		loser = owner_at((s->best_word & CELL_OWNER) - 1);
		if (loser)
			__sync_fetch_and_add(&loser->flows_evicted, 1);
	}
	return s->best;
}

/* Ends the owner's change of a cell that it holds busy: the flow is in it, or the cell is free
 * again. */
ALWAYS_INLINE void cell_settle(__u32 family, struct weft_cell *cell, int made)
{
	__u64 word = *(volatile __u64 *)&cell->word;

	cell_change(family, cell, word, made ? word & CELL_OWNER : 0);
}

#endif
