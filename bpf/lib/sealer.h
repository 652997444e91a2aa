/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_SEALER_H
#define WEFT_SEALER_H

#include "esp.h"
#include "sealer_structs.h"

/* The sealer: a process behind the tap weft_sealer that cuts, seals and opens many packets at once
 * (engine user). What a hook gives it keeps its Ethernet header's place for weft_sealer_header, and
 * comes back through from_sealer. Sequence numbers, windows, peers and lifetimes stay here: the
 * process is told which numbers to use, and what it has opened passes the same checks as what a
 * hook opens. */

/* The sealer is taken for dead when it owes an answer for longer; then one packet is risked now and
 * then. */
#define SEALER_PATIENCE (50 * 1000 * 1000ULL)
#define SEALER_RETRY	NSEC_PER_SEC

/* Packets of one direction in a row, within a tick of the flow's, that make a flow one that
 * streams: 3 800 a second and more. */
#define STREAM_RUN 64

/* On a packet that from_sealer gives to from_wire for the stack: that it was opened, and its tag.
 * Nobody else can have a mark on a packet that an uplink receives: a card sets none, and it does
 * not cross network namespaces. */
#define SEALER_MARK	 0x57450000u
#define SEALER_MARK_MASK 0xffff0000u

/* How far into a packet the process follows headers, bytes from the IP header on. */
#define SEALER_HEADERS_MAX 128

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_sealer_state);
} weft_sealer SEC(".maps");

/* What the header says, as numbers. */
struct weft_sealer_say {
	__u64 seq;
	__u32 kind, count, id, identity;
};

/* What the sealer has said of a frame, and what the frame is: not on the stack, which the calls
 * that are open at once share. */
struct weft_said {
	struct weft_sealer_say say;
	struct weft_pkt pkt;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_said);
} weft_said SEC(".maps");

ALWAYS_INLINE struct weft_sealer_state *sealer_state(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weft_sealer, &zero);
}

/* Whether the sealer has owed an answer for long. */
ALWAYS_INLINE int sealer_is_late(void)
{
	struct weft_sealer_state *s = sealer_state();
	__u64 asked = s ? *(volatile __u64 *)&s->asked_ns : 0;

	return asked && (__s64)(bpf_ktime_get_ns() - asked) >= (__s64)SEALER_PATIENCE;
}

/* Whether the sealer is there and answers. Without a lock: what two CPUs do at once moves the
 * moment from which it owes an answer by no more than the time between them. */
ALWAYS_INLINE int sealer_ask(const struct weft_config *cfg)
{
	struct weft_sealer_state *s;
	__u64 asked, now;

	if (!cfg->sealer_ifindex || weft_tracing)
		return 0;
	s = sealer_state();
	if (!s)
		return 0;
	now = bpf_ktime_get_ns();
	asked = *(volatile __u64 *)&s->asked_ns;
	if (!asked) {
		*(volatile __u64 *)&s->asked_ns = now;
		return 1;
	}
	if ((__s64)(now - asked) < (__s64)SEALER_PATIENCE)
		return 1;
	if (now - s->retried_ns < SEALER_RETRY)
		return 0;
	s->retried_ns = now;
	return 1;
}

/* Notes that the sealer has answered. */
ALWAYS_INLINE void sealer_answered(void)
{
	struct weft_sealer_state *s = sealer_state();

	if (s && *(volatile __u64 *)&s->asked_ns)
		*(volatile __u64 *)&s->asked_ns = 0;
}

#ifndef WEFT_XDP

#include "share.h"

ALWAYS_INLINE int sealer_give(weft_ctx *ctx, const struct weft_config *cfg,
			      const struct weft_sealer_say *say)
{
	struct weft_sealer_header *h = ctx_data(ctx);

	if ((void *)(h + 1) > ctx_end(ctx))
		return CTX_DROP;
	h->hi = bpf_cpu_to_be64((__u64)say->kind << 61 | (__u64)say->count << 53 |
				(__u64)(say->id & SEALER_ID_MASK) << 31 |
				(__u64)(say->identity & SEALER_ID_MASK) << 9 |
				(say->seq >> 30 & 0x1ff));
	h->lo = bpf_htonl((__u32)say->seq << 2);
	ctx_mark_routed(ctx);
	return bpf_redirect(cfg->sealer_ifindex, 0);
}

ALWAYS_INLINE struct weft_said *sealer_said(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weft_said, &zero);
}

/* Reads what the sealer says. Returns -1 if the frame is too short. */
ALWAYS_INLINE int sealer_read(weft_ctx *ctx, struct weft_sealer_say *say)
{
	struct weft_sealer_header *h = ctx_data(ctx);
	__u64 hi;

	if ((void *)(h + 1) > ctx_end(ctx))
		return -1;
	hi = bpf_be64_to_cpu(h->hi);
	say->kind = hi >> 61;
	say->count = hi >> 53 & 0xff;
	say->id = hi >> 31 & SEALER_ID_MASK;
	say->identity = hi >> 9 & SEALER_ID_MASK;
	say->seq = (hi & 0x1ff) << 30 | bpf_ntohl(h->lo) >> 2;
	return 0;
}

/* Whether the sealer can cut the frame: its checksum begins at the transport header that was
 * parsed, so there is no other packet inside, and the tap takes it whole. */
ALWAYS_INLINE int sealer_cuts(weft_ctx *ctx, const struct weft_pkt *p, int unfinished, __u32 start)
{
	if (p->proto != IPPROTO_TCP && p->proto != IPPROTO_UDP)
		return 0;
	if (weft_test_run)
		return 1;
	return unfinished && start + ETH_LEN == p->l4 && skb_is_plain_gso(ctx) &&
	       skb_is_tcp_gso(ctx) == (p->proto == IPPROTO_TCP);
}

/* How many packets the frame is cut into, 0 if the sealer is not to have it: what it cannot cut,
 * and what is so rare that it need not. */
ALWAYS_INLINE __u32 sealer_count(weft_ctx *ctx, const struct weft_pkt *p)
{
	__u32 size = ctx_segment(ctx), start = 0, field, headers, count;
	int unfinished = skb_unfinished(ctx, &start, &field);

	if (!p->family || p->slow || unfinished < 0 || start + 60 > SEALER_HEADERS_MAX)
		return 0;
	/* Behind the IP packet: the sealer would refuse it. */
	if (unfinished && field + 2 > p->l3_size)
		return 0;
	if (!size)
		return 1;
	headers = p->l3_size + ETH_LEN - size;
	if (p->len > 0xffff || p->l3_size + ETH_LEN < size || p->len <= headers ||
	    !sealer_cuts(ctx, p, unfinished, start))
		return 0;
	count = (p->len - headers + size - 1) / size;
	return count > SEALER_COUNT_MAX ? 0 : count;
}

/* The SA with which the sealer seals for a node; NULL if it has none. */
ALWAYS_INLINE struct weft_sa_out *sealer_sa(const struct weft_config *cfg, __u32 node, __u32 *id)
{
	const struct weft_peer *peer = peer_of(node);
	struct weft_sa_out *sa;

	if (!cfg->sealer_ifindex || !peer || !peer->epoch || !peer->lanes || peer->lanes > 63)
		return NULL;
	*id = sa_id(node, peer->epoch, peer->lanes);
	sa = bpf_map_lookup_elem(&weft_sa_out, id);
	return sa && sa->head.engine == ENGINE_USER && sa->head.sealer & SEALER_HOLDS ? sa : NULL;
}

/* Whether the sealer would take packets for a node. */
ALWAYS_INLINE int sealer_has(const struct weft_config *cfg, __u32 node)
{
	__u32 id;

	return sealer_sa(cfg, node, &id) != NULL;
}

/* Gives who's frame to the sealer, to be sealed for a node: sets *act and returns 1, or returns 0
 * if it is to go the other way. What exceeds its sender's share in the queue is dropped, as what
 * finds the queue full is: the other way is slower, and would have it overtaken. */
ALWAYS_INLINE int sealer_take(weft_ctx *ctx, const struct weft_config *cfg,
			      const struct weft_pkt *p, __u32 who, __u32 node, __u32 identity,
			      int *act)
{
	struct weft_sealer_say say = {.identity = identity};
	const struct weft_peer *peer = peer_of(node);
	struct weft_sa_out *sa = sealer_sa(cfg, node, &say.id);

	if (!peer || !sa || weft_tracing)
		return 0;
	say.count = sealer_count(ctx, p);
	if (!say.count || sa_seals(sa) || sa->counter + say.count > sa->limit)
		return 0;
	if (!sealer_is_late() && !share_has_room(who)) {
		*act = drop(cfg, p, REASON_SEALER_SHARE);
		return 1;
	}
	/* Asked last: who is asked owes an answer. */
	if (!sealer_ask(cfg))
		return 0;
	say.kind = peer->family == 4 ? SEALER_SEAL4 : SEALER_SEAL6;
	if (sa_take(sa, say.count, &say.seq) || say.seq + say.count > SEALER_SEQ_LIMIT)
		return 0;
	share_count(who, say.id, say.seq);
	*act = sealer_give(ctx, cfg, &say);
	if (*act == CTX_DROP)
		drop(cfg, p, REASON_INTERNAL);
	return 1;
}

#endif

#endif
