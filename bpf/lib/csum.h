/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_CSUM_H
#define WEFT_CSUM_H

#include "ctx.h"

/* The Internet checksum (RFC 1071) in 32-bit steps: callers add words, then fold. */

ALWAYS_INLINE __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* RFC 1624 equation 3: the header checksum after TTL went down by one. TTL is the high byte of
 * its 16-bit word. */
ALWAYS_INLINE void csum_ttl_down(__u16 *check)
{
	__u32 sum = *check;

	sum += bpf_htons(0x0100);
	*check = sum + (sum >= 0xffff);
}

/* Adds words 32-bit words at data, at most max; the caller has checked nothing, this checks each.
 */
ALWAYS_INLINE int csum_words(const void *data, const void *end, int words, int max, __u64 *sum)
{
	const __be32 *w = data;

	for (int i = 0; i < max; i++) {
		if (i >= words)
			break;
		if ((const void *)(w + i + 1) > end)
			return -1;
		*sum += w[i];
	}
	return 0;
}

ALWAYS_INLINE void csum_add_addr(const union weft_addr *a, __u64 *sum)
{
	*sum += (__u64)a->w[0] + a->w[1] + a->w[2] + a->w[3];
}

#endif
