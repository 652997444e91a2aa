/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_EXEMPT_H
#define WEFT_EXEMPT_H

#include "ctx.h"
#include "maps.h"

/* Whether a policy lets the address travel in plain. */
ALWAYS_INLINE int is_plain(const union weft_addr *addr)
{
	struct weft_route_key key = {.prefixlen = 128};

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(&weft_plain, &key) != NULL;
}

SUBPROGRAM int must_seal(const struct weft_config *cfg, const struct weft_pkt *p)
{
	if (!cfg || !p)
		return 1;
	return cfg->flags & CONFIG_SEAL && !is_plain(&p->src) && !is_plain(&p->dst);
}

/* Whether a packet that another node's host sends is sealed: it is for a pod. */
ALWAYS_INLINE int is_sealed_for_pod(const struct weft_config *cfg, const struct weft_pkt *p)
{
	const struct weft_route *to = route_of(&p->dst);

	return ((to && !(to->flags & ROUTE_HOST)) || bpf_map_lookup_elem(&weft_ep_addr, &p->dst)) &&
	       must_seal(cfg, p);
}

#endif
