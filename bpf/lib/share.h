/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_SHARE_H
#define WEFT_SHARE_H

#include "sealer_structs.h"

/* Shares in the sealer's queue: the frames that wait there were sent by endpoints (slot 0: by this
 * host), and each of those that send has as much room as any other, so that who floods loses its
 * own. The kernel does not say what is in the queue, but the sealer answers in the order in which
 * it was asked: once it has answered one frame, all that were given before it are out. So frames
 * are numbered as they are given, one at a time is waited for, and an endpoint's are counted in two
 * parts, those before and since a number. That overstates what waits, never for longer than the
 * queue takes. Without locks: what two CPUs do at once miscounts a frame until then. */

/* What of the queue is shared out. The rest is for frames that are to be opened, and for who begins
 * to send. */
#define SHARED_FRAMES	(SEALER_FRAMES * 7 / 8)
#define SHARED_AT_LEAST 16

/* Who has sent in this period or the one before has a share: 2^24 ns, 17 ms. */
#define SHARE_PERIOD 24

/* After so long what is waited for is taken for lost: the queue had no room for it. */
#define SHARE_PATIENCE (50 * 1000 * 1000ULL)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_sealer_queue);
} weft_seal_queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEFT_MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct weft_sealer_share);
} weft_seal_share SEC(".maps");

ALWAYS_INLINE struct weft_sealer_queue *sealer_queue(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weft_seal_queue, &zero);
}

/* Counts who sends in this period. */
ALWAYS_INLINE void share_period(struct weft_sealer_queue *q, struct weft_sealer_share *s,
				__u32 period)
{
	__s32 passed = period - q->period;

	if (passed > 0) {
		q->senders_before = passed == 1 ? q->senders : 0;
		q->senders = 0;
		q->period = period;
	}
	if (s->period != q->period) {
		s->period = q->period;
		q->senders++;
	}
}

/* How many of an endpoint's frames may wait. */
ALWAYS_INLINE __u32 share_of(const struct weft_sealer_queue *q)
{
	__u32 senders = q->senders > q->senders_before ? q->senders : q->senders_before;
	__u32 share = SHARED_FRAMES / (senders ?: 1);

	return share > SHARED_AT_LEAST ? share : SHARED_AT_LEAST;
}

/* Forgets the frames of an endpoint that are out of the queue. */
ALWAYS_INLINE void share_settle(const struct weft_sealer_queue *q, struct weft_sealer_share *s,
				__u64 now)
{
	__u64 done = *(volatile __u64 *)&q->done, given = *(volatile __u64 *)&q->given;

	if (s->last <= done || s->last > given) { /* or it is an earlier sealer's */
		s->before = s->since = 0;
	} else if (s->mark <= done || (__s64)(now - s->marked_ns) > (__s64)SHARE_PATIENCE) {
		s->before = s->since;
		s->since = 0;
	} else {
		return;
	}
	s->mark = given + 1;
	s->marked_ns = now;
}

/* Whether an endpoint may have one more frame wait for the sealer. */
static __noinline int share_has_room(__u32 slot)
{
	struct weft_sealer_share *s = bpf_map_lookup_elem(&weft_seal_share, &slot);
	struct weft_sealer_queue *q = sealer_queue();
	__u64 now = bpf_ktime_get_ns();

	if (!s || !q)
		return 0;
	share_period(q, s, now >> SHARE_PERIOD);
	share_settle(q, s, now);
	return s->before + s->since < share_of(q);
}

/* Counts a frame that is given to the sealer. seq is its number in the SA id. */
static __noinline int share_count(__u32 slot, __u32 id, __u64 seq)
{
	struct weft_sealer_share *s = bpf_map_lookup_elem(&weft_seal_share, &slot);
	struct weft_sealer_queue *q = sealer_queue();
	__u64 number, now;

	if (!s || !q)
		return 0;
	number = __sync_fetch_and_add(&q->given, 1) + 1;
	s->last = number;
	__sync_fetch_and_add(&s->since, 1);
	now = bpf_ktime_get_ns();
	if (*(volatile __u64 *)&q->awaited && (__s64)(now - q->awaited_ns) < (__s64)SHARE_PATIENCE)
		return 0;
	store_ordered(&q->awaited, 0);
	q->awaited_id = id;
	q->awaited_seq = seq;
	q->awaited_ns = now;
	store_ordered(&q->awaited, number);
	return 0;
}

/* Notes that the sealer has answered what was given with numbers up to seq of an SA. */
ALWAYS_INLINE void share_answered(__u32 id, __u64 seq)
{
	struct weft_sealer_queue *q = sealer_queue();
	__u64 number;

	if (!q)
		return;
	number = *(volatile __u64 *)&q->awaited;
	if (!number || q->awaited_id != id || q->awaited_seq > seq)
		return;
	q->done = number;
	store_ordered(&q->awaited, 0);
}

#endif
