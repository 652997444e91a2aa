/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_TRACE_H
#define WEFT_TRACE_H

#include "ctx.h"
#include "maps.h"

/* Notes one decision, in the traced copy of a program only. */
ALWAYS_INLINE void trace(const struct weft_pkt *p, enum weft_step step, __u32 a, __u32 b, __u32 c)
{
	__u32 zero = 0;
	struct weft_trace *t;
	struct weft_trace_step *s;

	if (!weft_tracing)
		return;
	t = bpf_map_lookup_elem(&weft_trace, &zero);
	if (!t || t->n >= WEFT_TRACE_STEPS)
		return;
	s = &t->steps[t->n % WEFT_TRACE_STEPS];
	s->step = step;
	s->hook = p->hook;
	s->a = a;
	s->b = b;
	s->c = c;
	t->n++;
}

#endif
