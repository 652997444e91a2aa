/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_FLOW_H
#define WEFT_FLOW_H

#include "events.h"
#include "parse.h"
#include "trace.h"

/* The flow table: one entry per conversation, for both directions, so the key holds the
 * two ends in numeric order and a direction bit says which of them is sending. */

struct weft_flow_ref {
	struct weft_flow *flow;
	__u32 dir; /* the packet's direction: 0 goes from the key's a to its b */
};

ALWAYS_INLINE int key4(struct weft_key4 *k, const struct weft_pkt *p)
{
	__u64 s = (__u64)p->src.w[3] << 16 | p->sport, d = (__u64)p->dst.w[3] << 16 | p->dport;
	int swap = s > d;

	k->a = swap ? p->dst.w[3] : p->src.w[3];
	k->b = swap ? p->src.w[3] : p->dst.w[3];
	k->pa = swap ? p->dport : p->sport;
	k->pb = swap ? p->sport : p->dport;
	k->proto = p->proto;
	k->pad[0] = k->pad[1] = k->pad[2] = 0;
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
	k->pad[0] = k->pad[1] = k->pad[2] = 0;
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

/* Never 0 for a flow that has one, and different for the flows that an attacker could make share an
 * entry's memory by flooding the table. */
ALWAYS_INLINE __u32 flow_tag(const struct weft_pkt *p)
{
	__u64 t;

	if (p->family == 4)
		t = (__u64)p->src.w[3] * 0x9e3779b97f4a7c15ULL + p->dst.w[3];
	else
		t = (p->src.d[0] ^ p->src.d[1]) * 0x9e3779b97f4a7c15ULL + p->dst.d[0] * 3 + p->dst.d[1];
	t ^= (__u64)p->sport << 48 | (__u64)p->dport << 16 | p->proto;
	t *= 0xbf58476d1ce4e5b9ULL;
	return (t >> 32) | 1;
}

/* How long nothing of the flow was seen, nanoseconds. Negative when another CPU has seen something later. */
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

/* One step of the TCP state machine, on what passes by (RFC 9293 figure 5, seen from the middle). */
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
		f->flags |= dir ? FLOW_FIN_1 : FLOW_FIN_0;
		f->state = (f->flags & FLOW_FIN_0) && (f->flags & FLOW_FIN_1) ? STATE_CLOSED : STATE_CLOSING;
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
static __noinline int flow_step(const struct weft_config *cfg, const struct weft_pkt *p, struct weft_flow *f,
				__u32 dir, __u32 verdict)
{
	if (p->proto == IPPROTO_TCP)
		flow_step_tcp(f, dir, p->tcp_flags);
	else
		f->state = STATE_REPLIED;
	if (f->state == STATE_CLOSED && !(f->flags & FLOW_ENDED)) {
		f->flags |= FLOW_ENDED;
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
	return p->proto == IPPROTO_TCP && (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
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

ALWAYS_INLINE void flow_init(struct weft_flow *f, const struct weft_pkt *p, __u32 dir, int via_stack, __u64 now)
{
	__builtin_memset(f, 0, sizeof(*f));
	f->first_ns = f->last_ns = now;
	f->slot = p->slot;
	f->hook = p->hook;
	f->direction = p->direction;
	f->flags = (dir ? FLOW_FIRST_IS_1 : 0) | (via_stack ? FLOW_VIA_STACK : 0);
	f->state = STATE_NEW;
	if (p->proto == IPPROTO_TCP)
		f->state = is_syn(p) ? STATE_SYN_SENT : STATE_ESTABLISHED;
}

SUBPROGRAM int flow_insert(const struct weft_config *cfg, struct weft_pkt *p, __u32 dir, int via_stack,
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
	flow_init(f, p, dir, via_stack, now);
	if (p->family == 4) {
		struct weft_key4 k;

		key4(&k, p);
		bpf_map_update_elem(&weft_flows4, &k, f, BPF_ANY);
	} else {
		struct weft_key6 k;

		key6(&k, p);
		bpf_map_update_elem(&weft_flows6, &k, f, BPF_ANY);
	}
	emit(cfg, p, EVENT_NEW, via_stack ? VERDICT_STACK : verdict, NULL);
	return 0;
}

/* The flow that p belongs to, made if need be. from_stack: the calling hook sees what the stack
 * sends. verdict is for the event of a new flow. Returns a NULL flow only when tracing, or when the table has
 * no room even for an eviction; the packet then goes on unremembered, by the stack if via_stack is set. */
ALWAYS_INLINE struct weft_flow_ref flow_get(const struct weft_config *cfg, struct weft_pkt *p, int from_stack,
					    enum weft_verdict verdict, int *via_stack, __u64 now)
{
	struct weft_flow_ref ref = flow_find(p);

	if (ref.flow) {
		int over = flow_idle(ref.flow, now) > flow_timeout(ref.flow, p->proto);
		int again = is_syn(p) && ref.flow->state == STATE_CLOSED;

		if (!over && !again) {
			trace(p, STEP_FLOW_HIT, ref.flow->state, ref.flow->flags, 0);
			*via_stack = !!(ref.flow->flags & FLOW_VIA_STACK);
			return ref;
		}
	}
	*via_stack = from_stack || is_midstream(p);
	trace(p, STEP_FLOW_NEW, *via_stack, 0, 0);
	flow_insert(cfg, p, ref.dir, *via_stack, verdict);
	if (!weft_tracing)
		ref = flow_find(p);
	else
		ref.flow = NULL;
	return ref;
}

/* Everything a packet changes in its flow but the cached decision. */
ALWAYS_INLINE void flow_update(const struct weft_config *cfg, const struct weft_pkt *p,
			       struct weft_flow_ref ref, enum weft_verdict verdict, __u64 now)
{
	if (weft_tracing)
		return;
	ref.flow->last_ns = now;
	flow_count(ref.flow, p, ref.dir);
	if (flow_steps(ref.flow, p, ref.dir))
		flow_step(cfg, p, ref.flow, ref.dir, verdict);
}

#endif
