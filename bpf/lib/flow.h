/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_FLOW_H
#define WEFT_FLOW_H

#include "cell.h"
#include "events.h"
#include "headers.h"
#include "trace.h"

/* The flow table: one entry per conversation, for both directions, so the key holds the
 * two ends in numeric order and a direction bit says which of them is sending. */

struct weft_flow_ref {
	struct weft_flow *flow;
	__u32 dir; /* the packet's direction: 0 goes from the key's a to its b */
};

ALWAYS_INLINE void put_network(__u8 *to, __u32 network)
{
	to[0] = network;
	to[1] = network >> 8;
	to[2] = network >> 16;
}

ALWAYS_INLINE __u32 network_of(const __u8 *from)
{
	return from[0] | from[1] << 8 | (__u32)from[2] << 16;
}

ALWAYS_INLINE int key4(struct weft_key4 *k, const struct weft_pkt *p)
{
	__u64 s = (__u64)p->src.w[3] << 16 | p->sport, d = (__u64)p->dst.w[3] << 16 | p->dport;
	int swap = s > d;

	k->a = swap ? p->dst.w[3] : p->src.w[3];
	k->b = swap ? p->src.w[3] : p->dst.w[3];
	k->pa = swap ? p->dport : p->sport;
	k->pb = swap ? p->sport : p->dport;
	k->proto = p->proto;
	put_network(k->network, p->network);
	return swap;
}

ALWAYS_INLINE int key6(struct weft_key6 *k, const struct weft_pkt *p)
{
	int swap;

	if (p->src.d[0] != p->dst.d[0])
		swap = p->src.d[0] > p->dst.d[0];
	else if (p->src.d[1] != p->dst.d[1])
		swap = p->src.d[1] > p->dst.d[1];
	else
		swap = p->sport > p->dport;
	k->a = swap ? p->dst : p->src;
	k->b = swap ? p->src : p->dst;
	k->pa = swap ? p->dport : p->sport;
	k->pb = swap ? p->sport : p->dport;
	k->proto = p->proto;
	put_network(k->network, p->network);
	return swap;
}

ALWAYS_INLINE struct weft_flow_ref flow_find(const struct weft_pkt *p)
{
	struct weft_flow_ref ref = {};

	if (p->family == 4) {
		struct weft_key4 k;

		ref.dir = key4(&k, p);
		ref.flow = bpf_map_lookup_elem(&weft_flows4, &k);
	} else {
		struct weft_key6 k;

		ref.dir = key6(&k, p);
		ref.flow = bpf_map_lookup_elem(&weft_flows6, &k);
	}
	return ref;
}

/* One term of a digest: a word, its halves mixed so that every bit reaches the sum's upper half,
 * times a weight. */
#define WEIGHED(word, i) (((__u64)(word) ^ (__u64)(word) >> 32) * weft_weights[i])

/* Told by a decision's words and by the flow that it is for. What two writers have left of their
 * decisions together, or of another flow's, has another digest than the one that is with it, but
 * for one case in 2^32. The weights are random numbers of the agent's, so nobody can look for flows
 * that share a digest. Sums of products (multilinear hashing) need not wait for each other. */
ALWAYS_INLINE __u32 cached_digest(const struct weft_pkt *p, const struct weft_cached *c)
{
	const __u64 *word = (const __u64 *)c;
	__u64 t;

	_Static_assert(sizeof(*c) == 6 * sizeof(*word), "every word has a weight");
	t = WEIGHED(p->src.d[1], 0) + WEIGHED(p->dst.d[1], 1);
	if (p->family == 6)
		t += WEIGHED(p->src.d[0], 2) + WEIGHED(p->dst.d[0], 3);
	t += WEIGHED((__u64)p->sport << 48 | (__u64)p->dport << 32 | c->generation, 4) +
	     WEIGHED((__u64)p->network << 32 | p->proto, 5);
	t += WEIGHED(word[1], 6) + WEIGHED(word[2], 7) + WEIGHED(word[3], 8) + WEIGHED(word[4], 9) +
	     WEIGHED(word[5], 10);
	return t >> 32;
}

/* Several CPUs do so at once, and none may undo another's. */
ALWAYS_INLINE void flow_flag(struct weft_flow *f, __u32 flag)
{
	if (!(f->flags & flag))
		__sync_fetch_and_or(&f->flags, flag);
}

/* One step of the TCP state machine, on what passes by (RFC 9293 figure 5, seen from the middle).
 */
ALWAYS_INLINE void flow_step_tcp(struct weft_flow *f, __u32 dir, __u8 flags)
{
	__u32 first = !!(f->flags & FLOW_FIRST_IS_1);

	if (flags & TCP_RST) {
		f->state = STATE_CLOSED;
		return;
	}
	/* The other side's SYN has an ACK, or, when both open at once, not. */
	if (f->state == STATE_SYN_SENT && (flags & TCP_SYN) && dir != first)
		f->state = STATE_SYN_RECEIVED;
	else if (f->state == STATE_SYN_RECEIVED && (flags & TCP_ACK) && !(flags & TCP_SYN))
		f->state = STATE_ESTABLISHED;
	if (flags & TCP_FIN) {
		flow_flag(f, dir ? FLOW_FIN_1 : FLOW_FIN_0);
		f->state = (f->flags & FLOW_FIN_0) && (f->flags & FLOW_FIN_1) ? STATE_CLOSED
									      : STATE_CLOSING;
	}
}

/* Whether the packet may take its flow to another state. */
ALWAYS_INLINE int flow_steps(const struct weft_flow *f, const struct weft_pkt *p, __u32 dir)
{
	if (p->proto == IPPROTO_TCP)
		return p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST) || f->state == STATE_SYN_SENT ||
		       f->state == STATE_SYN_RECEIVED;
	return f->state == STATE_NEW && dir != !!(f->flags & FLOW_FIRST_IS_1);
}

/* For packets of which flow_steps says so. */
static __noinline int flow_step(const struct weft_config *cfg, const struct weft_pkt *p,
				struct weft_flow *f, __u32 dir, __u32 verdict)
{
	if (p->proto == IPPROTO_TCP)
		flow_step_tcp(f, dir, p->tcp_flags);
	else
		f->state = STATE_REPLIED;
	if (f->state == STATE_CLOSED && !(f->flags & FLOW_ENDED)) {
		flow_flag(f, FLOW_ENDED);
		emit(cfg, p, EVENT_END, verdict, f);
	}
	return 0;
}

ALWAYS_INLINE void flow_count(struct weft_flow *f, const struct weft_pkt *p, __u32 dir)
{
	if (weft_tracing)
		return;
	__sync_fetch_and_add(&f->half[dir & 1].packets, p->packets);
	__sync_fetch_and_add(&f->half[dir & 1].bytes, p->len);
}

ALWAYS_INLINE int is_syn(const struct weft_pkt *p)
{
	return p->proto == IPPROTO_TCP &&
	       (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* A packet that can only be in the middle of a conversation which this table does not know. The
 * stack may know it (and translate its addresses), so the stack must route it. */
ALWAYS_INLINE int is_midstream(const struct weft_pkt *p)
{
	if (p->proto == IPPROTO_TCP)
		return !is_syn(p);
	if (p->family == 4)
		return p->proto == IPPROTO_ICMP && p->icmp_type == ICMP4_ECHO_REPLY;
	return p->proto == IPPROTO_ICMPV6 && p->icmp_type == ICMP6_ECHO_REPLY;
}

ALWAYS_INLINE void flow_init(struct weft_flow *f, const struct weft_pkt *p, __u32 dir,
			     int via_stack, __u64 now)
{
	__builtin_memset(f, 0, sizeof(*f));
	f->first_ns = f->last_ns = now;
	f->slot = p->slot;
	f->hook = p->hook;
	f->direction = p->direction;
	f->flags = (dir ^ p->reply ? FLOW_FIRST_IS_1 : 0) | (via_stack ? FLOW_VIA_STACK : 0) |
		   (p->unconfirmed ? FLOW_UNCONFIRMED : 0);
	f->initiator = p->reply ? 0 : p->sender;
	f->state = STATE_NEW;
	if (p->proto == IPPROTO_TCP)
		f->state = is_syn(p) ? STATE_SYN_SENT : STATE_ESTABLISHED;
}

/* Which endpoint has the address in the key's network, by its number; 0: none. Callers share one
 * key between both ends: their stack is short. */
ALWAYS_INLINE __u32 born_at(struct weft_addr_key *key, const union weft_addr *addr)
{
	const struct weft_endpoint *ep;

	key->addr = *addr;
	ep = bpf_map_lookup_elem(&weft_ep_addr, key);

	return ep ? ep->born : 0;
}

static __noinline int flow_enter_ends(const struct weft_pkt *p, struct weft_flow *f, __u32 dir)
{
	struct weft_addr_key key = {.network = p->network};

	f->born[dir & 1] = born_at(&key, &p->src);
	f->born[!(dir & 1)] = born_at(&key, &p->dst);
	return 0;
}

/* Whether the flow's two ends are the endpoints that it was made for: an address may belong to
 * another by now, and what was learned about the old one's flow (that the stack routes it, its
 * state) would misroute the new one's. Looked up once after each change of the configuration. */
static __noinline int flow_has_ends(const struct weft_pkt *p, const struct weft_flow *f, __u32 dir)
{
	struct weft_addr_key key = {.network = p->network};

	return f->born[dir & 1] == born_at(&key, &p->src) &&
	       f->born[!(dir & 1)] == born_at(&key, &p->dst);
}

ALWAYS_INLINE int flow_same_ends(const struct weft_config *cfg, const struct weft_pkt *p,
				 struct weft_flow *f, __u32 dir)
{
	__u32 generation = generation_of(cfg);

	if (f->checked == generation)
		return 1;
	if (!flow_has_ends(p, f, dir))
		return 0;
	if (!weft_tracing)
		f->checked = generation;
	return 1;
}

ALWAYS_INLINE int flow_is_over(const struct weft_config *cfg, const struct weft_pkt *p,
			       struct weft_flow_ref ref, __u64 now)
{
	return flow_idle(ref.flow, now) > flow_timeout(ref.flow, p->proto) ||
	       !flow_same_ends(cfg, p, ref.flow, ref.dir);
}

/* Whether a cell's key is the packet's. dir is the packet's direction under it. */
ALWAYS_INLINE int cell_is_of(const struct weft_cell *cell, const struct weft_pkt *p, __u32 dir)
{
	const union weft_addr *a = dir ? &p->dst : &p->src, *b = dir ? &p->src : &p->dst;
	__be16 pa = dir ? p->dport : p->sport, pb = dir ? p->sport : p->dport;

	if (p->family == 4)
		return network_of(cell->key4.network) == p->network && cell->key4.a == a->w[3] &&
		       cell->key4.b == b->w[3] && cell->key4.pa == pa && cell->key4.pb == pb &&
		       cell->key4.proto == p->proto;
	return network_of(cell->key6.network) == p->network && addr_equal(&cell->key6.a, a) &&
	       addr_equal(&cell->key6.b, b) && cell->key6.pa == pa && cell->key6.pb == pb &&
	       cell->key6.proto == p->proto;
}

/* Makes the cell of a flow that is over the owner's, busy, if nobody else has taken it since. */
ALWAYS_INLINE __u32 flow_retake(const struct weft_pkt *p, __u32 dir, __u32 index)
{
	struct weft_cell *cell = cell_at(p->family, index);
	__u64 word;

	if (!cell)
		return CELL_NONE;
	word = *(volatile __u64 *)&cell->word;
	if (!(word & CELL_OWNER) || word & CELL_BUSY)
		return CELL_NONE;
	load_fence();
	/* The key stays as it is while the word does. */
	if (!cell_is_of(cell, p, dir) ||
	    !cell_change(p->family, cell, word, (owner_of(p) + 1) | CELL_BUSY))
		return CELL_NONE;
	return index;
}

/* Enters a flow into the table, in place of the one in the cell over if that is not CELL_NONE.
 * Returns 0 if it is in. */
ALWAYS_INLINE int flow_place(const struct weft_config *cfg, const struct weft_pkt *p,
			     struct weft_flow *f, __u32 dir, __u32 over, __u64 now)
{
	__u32 index = over == CELL_NONE ? CELL_NONE : flow_retake(p, dir, over);
	__u64 flags = over == CELL_NONE ? BPF_NOEXIST : BPF_ANY;
	struct weft_cell *cell;
	int err;

	if (index == CELL_NONE)
		index = cell_take(cfg, p->family, owner_of(p), now);
	if (index == CELL_NONE)
		return -1;
	cell = cell_at(p->family, index);
	if (!cell)
		return -1;
	f->cell = index;
	if (p->family == 4) {
		key4(&cell->key4, p);
		err = bpf_map_update_elem(&weft_flows4, &cell->key4, f, flags);
	} else {
		key6(&cell->key6, p);
		err = bpf_map_update_elem(&weft_flows6, &cell->key6, f, flags);
	}
	cell_settle(p->family, cell, !err);
	return err;
}

/* How flow_insert makes a flow: as the stack's or not, and in the cell of one that is over, or
 * CELL_NONE. */
#define FLOW_HOW(via_stack, cell) ((__u64)(cell) << 1 | !!(via_stack))

SUBPROGRAM int flow_insert(const struct weft_config *cfg, struct weft_pkt *p, __u32 dir, __u64 how,
			   __u32 verdict)
{
	__u64 now = clock_mono();
	struct weft_flow *f;
	__u32 zero = 0;

	if (!cfg || !p || weft_tracing)
		return 0;
	f = bpf_map_lookup_elem(&weft_scratch, &zero);
	if (!f)
		return 0;
	flow_init(f, p, dir, how & 1, now);
	f->checked = generation_of(cfg);
	flow_enter_ends(p, f, dir);
	if (flow_place(cfg, p, f, dir & 1, how >> 1, now))
		return 0;
	emit(cfg, p, EVENT_NEW, how & 1 ? VERDICT_STACK : verdict, NULL);
	return 0;
}

/* The flow that p belongs to, made if need be. from_stack: the calling hook sees what the stack
 * sends. verdict is for the event of a new flow. Returns a NULL flow only when tracing, or when the
 * table has no room that its owner may take; the packet then goes on unremembered, by the stack if
 * via_stack is set. */
ALWAYS_INLINE struct weft_flow_ref flow_get(const struct weft_config *cfg, struct weft_pkt *p,
					    int from_stack, enum weft_verdict verdict,
					    int *via_stack, __u64 now)
{
	struct weft_flow_ref ref = flow_find(p);

	if (ref.flow) {
		/* What may pass is not held to what a packet that may not have passed has left
		 * here. */
		int again = (is_syn(p) && ref.flow->state == STATE_CLOSED) ||
			    (ref.flow->flags & FLOW_UNCONFIRMED && !p->unconfirmed);

		if (!again && !flow_is_over(cfg, p, ref, now)) {
			trace(p, STEP_FLOW_HIT, ref.flow->state, ref.flow->flags, 0);
			*via_stack = !!(ref.flow->flags & FLOW_VIA_STACK);
			return ref;
		}
	}
	/* The stack translates nothing of other networks. */
	*via_stack = from_stack || (!p->network && is_midstream(p));
	trace(p, STEP_FLOW_NEW, *via_stack, 0, 0);
	flow_insert(cfg, p, ref.dir, FLOW_HOW(*via_stack, ref.flow ? ref.flow->cell : CELL_NONE),
		    verdict);
	if (!weft_tracing)
		ref = flow_find(p);
	else
		ref.flow = NULL;
	return ref;
}

/* About 17 ms: longer than what waits in the segmentation veth, or for the sealer, waits. */
#define FLOW_TICK_SHIFT 24

/* Counts packets of one direction in a row within a tick. What answers, such as a request and its
 * reply, never makes a long run; what streams does. */
ALWAYS_INLINE void flow_run(struct weft_flow *flow, __u32 dir, __u64 now)
{
	__u16 tick = now >> FLOW_TICK_SHIFT;

	if (flow->run_tick != tick || flow->run_direction != dir) {
		flow->run_tick = tick;
		flow->run_direction = dir;
		flow->run = 0;
	}
	if (flow->run < 0xffff)
		flow->run++;
}

/* Everything a packet changes in its flow but the cached decision. */
ALWAYS_INLINE void flow_update(const struct weft_config *cfg, const struct weft_pkt *p,
			       struct weft_flow_ref ref, enum weft_verdict verdict, __u64 now)
{
	if (weft_tracing)
		return;
	ref.flow->last_ns = now;
	if (weft_sealing)
		flow_run(ref.flow, ref.dir, now);
	flow_count(ref.flow, p, ref.dir);
	if (flow_steps(ref.flow, p, ref.dir))
		flow_step(cfg, p, ref.flow, ref.dir, verdict);
}

#endif
