/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_EVENTS_H
#define WEFT_EVENTS_H

#include "clock.h"
#include "count.h"

/* How an event is handed over. Waking the reader costs an interrupt and two context switches, more
 * than all else about a flow, so only the first of a burst does. */
ALWAYS_INLINE __u64 event_wake(struct weft_event_stats *stats, __u64 now)
{
	if (now - stats->woken_ns < EVENTS_QUIET)
		return BPF_RB_NO_WAKEUP;
	stats->woken_ns = now;
	return BPF_RB_FORCE_WAKEUP;
}

/* Writes one flow event, if the rate limit and the ring buffer let it. Whatever they do not let
 * through is counted, and nothing else about the packet changes: a flood of new flows costs the
 * flood's sender its events, not the node its CPU. verdict's second byte is the drop reason; flow
 * is NULL unless the flow ended. */
SUBPROGRAM int emit(const struct weft_config *cfg, const struct weft_pkt *p, __u32 type,
		    __u32 verdict, const struct weft_flow *flow)
{
	__u64 now = clock_mono();
	struct weft_event_stats *stats;
	struct weft_event *e;
	__u32 zero = 0, first, owner;
	struct weft_owner *o;

	if (!cfg || !p || weft_tracing)
		return 0;
	stats = bpf_map_lookup_elem(&weft_evstats, &zero);
	if (!stats)
		return 0;
	owner = owner_of(p);
	if (!take_token(owner, BUCKET_EVENTS, cfg->events_share, cfg->events_per_sec, now)) {
		stats->suppressed++;
		o = bpf_map_lookup_elem(&weft_owners, &owner);
		if (o)
			__sync_fetch_and_add(&o->events_suppressed, 1);
		return 0;
	}
	e = bpf_ringbuf_reserve(&weft_events, sizeof(*e), 0);
	if (!e) {
		stats->lost++;
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->time_ns = now;
	e->src = p->src;
	e->dst = p->dst;
	e->sport = p->sport;
	e->dport = p->dport;
	e->len = p->len;
	e->slot = p->slot;
	e->type = type;
	e->verdict = verdict & 0xff;
	e->reason = verdict >> 8;
	e->hook = p->hook;
	e->direction = p->direction;
	e->family = p->family;
	e->proto = p->proto;
	e->tcp_flags = p->tcp_flags;
	e->ethertype = p->ethertype;
	e->network = p->network;
	e->rule = p->rule;
	if (flow) {
		first = !!(flow->flags & FLOW_FIRST_IS_1);
		e->forward.packets = flow->half[first].packets;
		e->forward.bytes = flow->half[first].bytes;
		e->reply.packets = flow->half[!first].packets;
		e->reply.bytes = flow->half[!first].bytes;
	}
	bpf_ringbuf_submit(e, event_wake(stats, now));
	return 0;
}

#endif
