/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_EXEMPT_H
#define WEFT_EXEMPT_H

#include <linux/ip.h>
#include <linux/ipv6.h>
#include "ctx.h"
#include "maps.h"

/* Whether a policy lets the address travel in cleartext. */
ALWAYS_INLINE int is_plain(const union weft_addr *addr)
{
	struct weft_route_key key = {.prefixlen = ROUTE_KEY_BITS};

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

	return ((to && !(to->flags & ROUTE_HOST)) || endpoint_at(NETWORK_CLUSTER, &p->dst)) &&
	       must_seal(cfg, p);
}

/* The IP header that an ICMP error quotes. */
union weft_quoted {
	struct iphdr ip4;
	struct ipv6hdr ip6;
};

/* The addresses that p quotes. Returns 0 if there are any: the kernel does not look at the version.
 */
ALWAYS_INLINE int quote_addresses(const struct weft_pkt *p, const union weft_quoted *q,
				  union weft_addr *src, union weft_addr *dst)
{
	if (q->ip4.version != p->family)
		return -1;
	if (p->family == 4) {
		addr_from4(src, q->ip4.saddr);
		addr_from4(dst, q->ip4.daddr);
	} else {
		__builtin_memcpy(src, &q->ip6.saddr, 16);
		__builtin_memcpy(dst, &q->ip6.daddr, 16);
	}
	return 0;
}

/* Whether the packet that p quotes was sealed on its way here. Only the addresses count; if those
 * cannot be read either, it was. */
ALWAYS_INLINE int is_quote_sealed(const struct weft_config *cfg, struct weft_pkt *p,
				  const union weft_quoted *q)
{
	union weft_addr src = p->src, dst = p->dst;
	int sealed;

	if (quote_addresses(p, q, &p->src, &p->dst))
		return 1;
	sealed = is_sealed_for_pod(cfg, p);
	p->src = src;
	p->dst = dst;
	return sealed;
}

#endif
