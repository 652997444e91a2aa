/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_REPLAY_H
#define WEFT_REPLAY_H

#include "sa.h"

/* The window of RFC 6479: a ring of words, where advancing clears whole words. A packet is looked
 * up before its tag is verified (cheap refusal) and again, under the lock, after: only then is its
 * number taken, so no number is accepted twice, however many CPUs open packets of the lane at once.
 */

/* RFC 4303 appendix A2: the sequence number that the lower half most likely belongs to. There is
 * none before the first round, so there it can only be ahead. Whether the guess is right is for the
 * tag to say. */
ALWAYS_INLINE __u64 replay_infer(__u64 top, __u32 low)
{
	__u32 top_low = top, high = top >> 32, bottom = top_low - SA_WINDOW + 1;

	if (top_low >= SA_WINDOW - 1)
		high += low < bottom;
	else if (high)
		high -= low >= bottom;
	return (__u64)high << 32 | low;
}

/* Whether the number can still be accepted. Without the lock: an answer that is old in a moment. */
ALWAYS_INLINE int replay_check(const struct weft_sa_in *sa, __u64 seq)
{
	__u64 top = sa->top;

	if (!seq)
		return -1;
	if (seq > top)
		return 0;
	if (top - seq >= SA_WINDOW)
		return -1;
	return sa->window[seq >> 6 & (SA_WINDOW_WORDS - 1)] >> (seq & 63) & 1 ? -1 : 0;
}

/* Takes count numbers from seq on, at most 64, if nobody has taken any of them: all or none. The
 * top moves in any case, since the packets were genuine. */
ALWAYS_INLINE int replay_commit(struct weft_sa_in *sa, __u64 seq, __u32 count)
{
	__u64 last = seq + count - 1, word = last >> 6, first = seq >> 6, bits, low, high = 0,
	      ahead;
	__u32 shift = seq & 63;
	int refused = -1;

	if (!seq || !count || count > 64 || last < seq)
		return -1;
	bits = ~0ULL >> (64 - count);
	low = bits << shift;
	if (shift)
		high = bits >> (64 - shift);
	bpf_spin_lock(&sa->lock);
	if (last > sa->top) {
		ahead = word - (sa->top >> 6);
		for (__u32 i = 0; i < SA_WINDOW_WORDS; i++) {
			if (i >= ahead)
				break;
			sa->window[(word - i) & (SA_WINDOW_WORDS - 1)] = 0;
		}
		sa->top = last;
	}
	if (sa->top - seq < SA_WINDOW && !(sa->window[first & (SA_WINDOW_WORDS - 1)] & low) &&
	    !(sa->window[(first + 1) & (SA_WINDOW_WORDS - 1)] & high)) {
		sa->window[first & (SA_WINDOW_WORDS - 1)] |= low;
		sa->window[(first + 1) & (SA_WINDOW_WORDS - 1)] |= high;
		refused = 0;
	}
	bpf_spin_unlock(&sa->lock);
	return refused;
}

/* Whether the SA may be opened with. Returns a drop reason. */
ALWAYS_INLINE int sa_opens(const struct weft_sa_in *sa)
{
	return sa ? sa_usable(&sa->head, REASON_ESP_UNKNOWN_SA) : REASON_ESP_UNKNOWN_SA;
}

/* Before opening: finds the SA and the whole sequence number. Returns a drop reason. */
ALWAYS_INLINE int sa_admit(const struct weft_sa_in *sa, __u32 low, __u64 *seq)
{
	int reason = sa_opens(sa);
	__u64 n;

	if (reason || !sa)
		return reason;
	n = replay_infer(sa->top, low);
	if (replay_check(sa, n))
		return REASON_ESP_REPLAYED;
	*seq = n;
	return REASON_NONE;
}

/* After opening: nobody has had these numbers. Returns a drop reason. */
static __noinline int sa_commit(struct weft_sa_in *sa, __u64 seq, __u32 count, __u32 bytes)
{
	if (replay_commit(sa, seq, count))
		return REASON_ESP_REPLAYED;
	__sync_fetch_and_add(&sa->packets, count);
	__sync_fetch_and_add(&sa->head.bytes, bytes);
	return REASON_NONE;
}

#endif
