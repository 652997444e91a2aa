/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_MSS_H
#define WEFT_MSS_H

#include "esp.h"

/* A pod's interface may be larger than what fits the wire sealed: another plugin made it, or
 * encryption came later. Its connections then ask for segments that fit (RFC 9293 section 3.7.1),
 * instead of finding out by "packet too big". */

#define TCP_OPTIONS_MAX 40
#define TCPOPT_END	0
#define TCPOPT_NOP	1
#define TCPOPT_MSS	2

struct weft_mss {
	__u8 bytes[TCP_OPTIONS_MAX];
	__u32 at, stop;
	__u32 found; /* offset of the value among the options, 0 if there is none */
};

static long step_mss(__u32 i, void *state)
{
	struct weft_mss *m = state;
	__u32 at = m->at, len;

	if (at + 4 > m->stop || at > TCP_OPTIONS_MAX - 4)
		return 1;
	if (m->bytes[at] == TCPOPT_END)
		return 1;
	if (m->bytes[at] == TCPOPT_NOP) {
		m->at++;
		return 0;
	}
	len = m->bytes[at + 1];
	if (m->bytes[at] == TCPOPT_MSS && len == 4) {
		m->found = at + 2;
		return 1;
	}
	m->at += len;
	return len < 2;
}

/* Lowers the MSS option of a SYN to what fits the peer that it is sealed for. A SYN without one, or
 * whose options cannot be read, stays as it is. */
SUBPROGRAM int clamp_mss(weft_ctx *ctx, const struct weft_pkt *p)
{
	const struct weft_peer *peer;
	struct weft_mss m = {};
	__u32 l4, len, most, at;
	__u8 offset;
	__be16 mss;

	if (!p)
		return 0;
	peer = peer_of(p->node);
	if (!peer || !peer->mtu)
		return 0;
	l4 = p->l4;
	if (l4 > MAX_HEADERS || ctx_load(ctx, l4 + 12, &offset, 1))
		return 0;
	len = (offset >> 4) * 4;
	if (len <= 20)
		return 0;
	len -= 20;
	if (outside(len, 1, TCP_OPTIONS_MAX) || ctx_load(ctx, l4 + 20, m.bytes, len))
		return 0;
	m.stop = len;
	bpf_loop(TCP_OPTIONS_MAX, step_mss, &m, 0);
	at = m.found;
	if (!at || at > TCP_OPTIONS_MAX - 2)
		return 0;
	most = peer->mtu - 20 - (p->family == 4 ? IP4_LEN : IP6_LEN);
	if (ctx_load(ctx, l4 + 20 + at, &mss, 2) || bpf_ntohs(mss) <= most)
		return 0;
	return ctx_replace(ctx, l4 + 20 + at, l4 + 16, mss, bpf_htons(most));
}

#endif
