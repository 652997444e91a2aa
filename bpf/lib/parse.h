/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_PARSE_H
#define WEFT_PARSE_H

#include "headers.h"
#include "trace.h"

/* Parses; where only the linear part of a TC packet was too short, pulls the headers in and tries
 * again. */
SUBPROGRAM int parse(weft_ctx *ctx, struct weft_pkt *p)
{
	int reason;

	if (!p)
		return REASON_INTERNAL;
	reason = parse_frame(ctx, p);

	if (unlikely(reason == REASON_TRUNCATED) && !ctx_pull(ctx, PULL_LEN)) {
		__u8 hook = p->hook, direction = p->direction;

		__builtin_memset(p, 0, sizeof(*p));
		p->hook = hook;
		p->direction = direction;
		reason = parse_frame(ctx, p);
	}
	if (reason)
		trace(p, STEP_MALFORMED, reason, 0, 0);
	else
		trace(p, STEP_PARSED, p->family, p->proto,
		      (__u32)bpf_ntohs(p->sport) << 16 | bpf_ntohs(p->dport));
	return reason;
}

#endif
