/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_DROP_H
#define WEFT_DROP_H

#include "events.h"
#include "trace.h"

ALWAYS_INLINE const struct weft_config *config(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weft_config, &zero);
}

SUBPROGRAM int drop(const struct weft_config *cfg, const struct weft_pkt *p, __u32 reason)
{
	if (!cfg || !p)
		return CTX_DROP;
	trace(p, STEP_VERDICT, VERDICT_DROP, reason, 0);
	count_drop(p, reason);
	emit(cfg, p, EVENT_DROP, VERDICT_DROP | reason << 8, NULL);
	return CTX_DROP;
}

#endif
