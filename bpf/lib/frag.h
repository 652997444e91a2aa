/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_FRAG_H
#define WEFT_FRAG_H

#include "flow.h"

/* Gives a later fragment the ports of its first (RFC 791, RFC 8200 section 4.5), so that it belongs
 * to the same flow, meets the same policy and takes the same road. Without its first fragment, or
 * overlapping it, it is refused: nothing that was not checked passes. */
ALWAYS_INLINE int frag_check(struct weft_pkt *p)
{
	struct weft_frag_key key = {.src = p->src, .dst = p->dst, .id = p->frag_id, .proto = p->frag_proto};
	struct weft_frag *first;

	if (p->frag == FRAG_NONE)
		return REASON_NONE;
	if (p->frag == FRAG_FIRST) {
		struct weft_frag f = {
		    .sport = p->sport, .dport = p->dport, .first_end = p->frag_len, .proto = p->proto};

		if (!weft_tracing)
			bpf_map_update_elem(&weft_frags, &key, &f, BPF_ANY);
		return REASON_NONE;
	}
	first = bpf_map_lookup_elem(&weft_frags, &key);
	if (!first)
		return REASON_FRAGMENT_UNKNOWN;
	if (p->frag_off < first->first_end)
		return REASON_FRAGMENT_OVERLAP;
	p->sport = first->sport;
	p->dport = first->dport;
	p->proto = first->proto;
	return REASON_NONE;
}

#endif
