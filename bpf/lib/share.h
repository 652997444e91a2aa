/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_SHARE_H
#define WEFT_SHARE_H

#include "sealer_structs.h"

/* Shares in the sealer's queue: while it fills, each of those who send has as much room in it as
 * any other, so that who floods loses its own. Who: an endpoint, this host, or all whom this host
 * relays for. The kernel does not say what is in the queue, but the sealer answers in the order in
 * which it was asked: once it has answered one frame, all that were given before it are out. So
 * frames are numbered as they are given, one at a time is waited for, and a sender's are counted in
 * two parts, those before and since a number. That overstates what waits, by what passes while one
 * answer is waited for. Without locks: what two CPUs do at once miscounts a frame until then. */

/* What of the queue is shared out, and how much of it is in use when shares begin to count. The
 * rest is for frames that are to be opened, and for who begins to send. */
#define SHARED_FRAMES	(SEALER_FRAMES * 7 / 8)
#define SHARED_PRESSURE (SHARED_FRAMES / 2)

/* Whose frames are counted together: all that are neither an endpoint's nor this host's. */
#define SHARE_OTHERS WEFT_MAX_ENDPOINTS

/* Who has sent in this period or the one before has a share: 2^24 ns, 17 ms. */
#define SHARE_PERIOD 24
/* A clock may be behind another CPU's; one that is further behind is a period of before a reset. */
#define SHARE_BEHIND (1 << 20)

/* After so long what is waited for is taken for lost: the queue had no room for it. */
#define SHARE_PATIENCE (50 * 1000 * 1000ULL)

#define SHARE_CLAIMED (~0ULL)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_sealer_queue);
} weft_seal_queue SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEFT_MAX_ENDPOINTS + 1);
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

	if (passed > 0 || passed < -SHARE_BEHIND) {
		q->senders_before = passed == 1 ? q->senders : 0;
		q->senders = 0;
		q->period = period;
	}
	if (s->period != q->period) {
		s->period = q->period;
		q->senders++;
	}
}

/* How many of a sender's frames may wait. */
ALWAYS_INLINE __u32 share_of(const struct weft_sealer_queue *q)
{
	__u32 senders = q->senders > q->senders_before ? q->senders : q->senders_before;

	return (SHARED_FRAMES / (senders ?: 1)) ?: 1;
}

/* Forgets the frames of a sender that are out of the queue. */
ALWAYS_INLINE void share_settle(const struct weft_sealer_queue *q, struct weft_sealer_share *s,
				__u64 now)
{
	__u64 done = *(volatile __u64 *)&q->done, given = *(volatile __u64 *)&q->given;

	/* Beyond given: an earlier sealer's. */
	if (s->last <= done || s->last > given ||
	    (__s64)(now - s->marked_ns) > (__s64)SHARE_PATIENCE) {
		s->before = s->since = 0;
	} else if (s->mark <= done) {
		s->before = s->since;
		s->since = 0;
	} else {
		return;
	}
	s->mark = given + 1;
	s->marked_ns = now;
}

/* Whether a sender may have one more frame wait for the sealer. While no answer is waited for one
 * may: only what is given can be answered. */
static __noinline int share_has_room(__u32 who)
{
	struct weft_sealer_share *s = bpf_map_lookup_elem(&weft_seal_share, &who);
	struct weft_sealer_queue *q = sealer_queue();
	__u64 now = bpf_ktime_get_ns();

	if (!s || !q)
		return 0;
	share_period(q, s, now >> SHARE_PERIOD);
	share_settle(q, s, now);
	return q->given - q->done < SHARED_PRESSURE || s->before + s->since < share_of(q) ||
	       !*(volatile __u64 *)&q->awaited;
}

/* Waits for the answer to a frame, unless one is waited for. */
ALWAYS_INLINE void share_await(struct weft_sealer_queue *q, __u64 key, __u64 number)
{
	__u64 awaited = *(volatile __u64 *)&q->awaited, now = bpf_ktime_get_ns();

	if (awaited == SHARE_CLAIMED ||
	    (awaited && (__s64)(now - q->awaited_ns) < (__s64)SHARE_PATIENCE))
		return;
	if (__sync_val_compare_and_swap(&q->awaited, awaited, SHARE_CLAIMED) != awaited)
		return;
	q->awaited_number = number;
	q->awaited_ns = now;
	store_ordered(&q->awaited, key);
}

ALWAYS_INLINE __u64 share_key(__u32 id, __u64 seq) { return (__u64)id << SEALER_SEQ_BITS | seq; }

/* Counts a frame that is given to the sealer. seq is its number in the SA id. */
static __noinline int share_count(__u32 who, __u32 id, __u64 seq)
{
	struct weft_sealer_share *s = bpf_map_lookup_elem(&weft_seal_share, &who);
	struct weft_sealer_queue *q = sealer_queue();
	__u64 number;

	if (!s || !q)
		return 0;
	number = __sync_fetch_and_add(&q->given, 1) + 1;
	s->last = number;
	__sync_fetch_and_add(&s->since, 1);
	share_await(q, share_key(id, seq), number);
	return 0;
}

/* Notes that the sealer has answered what was given with numbers up to seq of an SA. What it says
 * is believed: nothing but room in its own queue depends on it. */
ALWAYS_INLINE void share_answered(__u32 id, __u64 seq)
{
	struct weft_sealer_queue *q = sealer_queue();
	__u64 key, number;

	if (!q || !seq)
		return;
	key = *(volatile __u64 *)&q->awaited;
	load_fence();
	number = *(volatile __u64 *)&q->awaited_number;
	if (!key || key >> SEALER_SEQ_BITS != id || key > share_key(id, seq))
		return;
	if (__sync_val_compare_and_swap(&q->awaited, key, 0) == key)
		q->done = number;
}

#endif
