/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_NEIGH_H
#define WEFT_NEIGH_H

#include "events.h"
#include "headers.h"

/* The gateway exists only here: these answer ARP (RFC 826) and neighbour solicitations (RFC 4861)
 * for it, and hold pods to their own addresses in both. */

#define ARP_HW_ETHERNET 1
#define ARP_REQUEST	1
#define ARP_REPLY	2

struct weft_arp {
	__be16 hw, proto;
	__u8 hw_len, proto_len;
	__be16 op;
	__u8 sha[6];
	__u8 spa[4];
	__u8 tha[6];
	__u8 tpa[4];
} __attribute__((packed));

struct weft_nd {
	__u8 type, code;
	__u16 check;
	__be32 flags;
	union weft_addr target;
	__u8 opt_type, opt_len;
	__u8 opt_mac[6];
};

#define ND_WITHOUT_OPTION	     24
#define RS_WITHOUT_OPTION	     8
#define ND_OPTIONS_MAX		     8
#define ND_SOURCE_MAC		     1 /* option types */
#define ND_TARGET_MAC		     2
#define ND_ROUTER_SOLICITED_OVERRIDE 0xe0000000

enum weft_neigh_result {
	NEIGH_ANSWER = -1,
	NEIGH_ABSORB = -2,
	NEIGH_STACK = -3,
	NEIGH_NOT_ND = -4
};

ALWAYS_INLINE __be32 arp_ip(const __u8 *p)
{
	return *(const __u16 *)p | (__u32) * (const __u16 *)(p + 2) << 16;
}

ALWAYS_INLINE int owns4(const struct weft_endpoint *ep, __be32 ip4)
{
	union weft_addr addr;

	addr_from4(&addr, ip4);
	return owns(ep, &addr);
}

/* Returns a drop reason, or one of weft_neigh_result. An ANSWER is already written into the frame.
 */
ALWAYS_INLINE int neigh_arp(weft_ctx *ctx, const struct weft_config *cfg,
			    const struct weft_endpoint *ep)
{
	struct ethhdr *eth = ctx_data(ctx);
	struct weft_arp *arp = (void *)(eth + 1);
	__be32 spa, tpa;

	if ((void *)(arp + 1) > ctx_end(ctx))
		return REASON_TRUNCATED;
	if (arp->hw != bpf_htons(ARP_HW_ETHERNET) || arp->proto != bpf_htons(ETH_P_IP) ||
	    arp->hw_len != 6 || arp->proto_len != 4)
		return REASON_SPOOFED_ARP;
	spa = arp_ip(arp->spa);
	tpa = arp_ip(arp->tpa);
	if (!mac_equal(arp->sha, ep->mac))
		return REASON_SPOOFED_ARP;
	/* An address probe has sender 0 (RFC 5227); everything else must speak for itself only. */
	if (spa && !owns4(ep, spa))
		return REASON_SPOOFED_ARP;
	if (ep->flags & ENDPOINT_CHAINED)
		return NEIGH_STACK;
	if (owns4(ep, tpa))
		return NEIGH_ABSORB;
	if (arp->op != bpf_htons(ARP_REQUEST) || tpa != cfg->gateway_ip4)
		return REASON_ARP_TARGET;
	arp->op = bpf_htons(ARP_REPLY);
	__builtin_memcpy(arp->tpa, arp->spa, 4);
	__builtin_memcpy(arp->spa, &tpa, 4);
	mac_copy(arp->tha, arp->sha);
	mac_copy(arp->sha, ep->gateway_mac);
	mac_copy(eth->h_dest, eth->h_source);
	mac_copy(eth->h_source, ep->gateway_mac);
	return NEIGH_ANSWER;
}

/* Turns the solicitation in the frame into the gateway's advertisement. */
ALWAYS_INLINE int nd_advertise(weft_ctx *ctx, const struct weft_config *cfg,
			       const struct weft_endpoint *ep, const struct weft_pkt *p,
			       int with_option)
{
	struct ethhdr *eth = ctx_data(ctx);
	struct ipv6hdr *ip = (void *)(eth + 1);
	struct weft_nd *nd = (void *)(ip + 1);
	__u64 sum = 0;
	int words = with_option ? 8 : 6;

	if ((void *)nd + ND_WITHOUT_OPTION > ctx_end(ctx))
		return REASON_TRUNCATED;
	if (with_option) {
		if ((void *)(nd + 1) > ctx_end(ctx))
			return REASON_TRUNCATED;
		nd->opt_type = 2; /* target link-layer address */
		nd->opt_len = 1;
		mac_copy(nd->opt_mac, ep->gateway_mac);
	}
	nd->type = ICMP6_NA;
	nd->code = 0;
	nd->check = 0;
	nd->flags = bpf_htonl(ND_ROUTER_SOLICITED_OVERRIDE);
	ip->payload_len = bpf_htons(words * 4);
	__builtin_memcpy(&ip->daddr, &p->src, 16);
	__builtin_memcpy(&ip->saddr, &cfg->gateway_ip6, 16);
	mac_copy(eth->h_dest, eth->h_source);
	mac_copy(eth->h_source, ep->gateway_mac);
	csum_add_addr(&p->src, &sum);
	csum_add_addr(&cfg->gateway_ip6, &sum);
	sum += bpf_htonl(words * 4);
	sum += bpf_htonl(IPPROTO_ICMPV6);
	if (csum_words(nd, ctx_end(ctx), words, 8, &sum))
		return REASON_TRUNCATED;
	nd->check = csum_fold(sum);
	return NEIGH_ANSWER;
}

/* Walks the options of a message, from at to end. Whichever says a link-layer address must say the
 * pod's. */
SUBPROGRAM int nd_options(weft_ctx *ctx, const struct weft_endpoint *ep, __u32 at, __u32 end)
{
	__u8 option[8];
	__u32 len;

	if (!ep)
		return REASON_INTERNAL;
	for (int i = 0; i < ND_OPTIONS_MAX; i++) {
		if (at == end)
			return REASON_NONE;
		if (at + sizeof(option) > end || ctx_load(ctx, at, option, sizeof(option)))
			return REASON_ND_OPTION;
		len = option[1] * 8;
		if (!len || at + len > end)
			return REASON_ND_OPTION;
		if (option[0] == ND_SOURCE_MAC || option[0] == ND_TARGET_MAC) {
			if (len != sizeof(option))
				return REASON_ND_OPTION;
			if (!mac_equal(option + 2, ep->mac))
				return REASON_SPOOFED_ND;
		}
		at += len;
	}
	return at == end ? REASON_NONE : REASON_ND_OPTION;
}

/* Whether the link-local address is the one that its interface makes of a MAC (RFC 4291 appendix
 * A). */
ALWAYS_INLINE int is_eui64(const union weft_addr *addr, const __u8 *mac)
{
	return addr->b[8] == (mac[0] ^ 2) && addr->b[9] == mac[1] && addr->b[10] == mac[2] &&
	       addr->b[11] == 0xff && addr->b[12] == 0xfe && addr->b[13] == mac[3] &&
	       addr->b[14] == mac[4] && addr->b[15] == mac[5];
}

/* Whether a chained pod may speak for the address. Of the link-local ones, that of its own MAC; and
 * one that says nothing about a MAC (RFC 7217), the first that it claims and nobody has claimed
 * before. Not one of another's MAC, the bridge's included, and none that was given by hand, as
 * gateways' are: fe80::1. */
SUBPROGRAM int nd_claim(const struct weft_endpoint *ep, const union weft_addr *addr)
{
	__u32 slot, *by, born;
	struct weft_claim *claim;

	if (!ep || !addr)
		return REASON_INTERNAL;
	if (owns(ep, addr))
		return REASON_NONE;
	if (addr->w[0] != bpf_htonl(0xfe800000) || addr->w[1])
		return REASON_SPOOFED_ND;
	if (is_eui64(addr, ep->mac))
		return REASON_NONE;
	if ((addr->b[11] == 0xff && addr->b[12] == 0xfe) || !addr->w[2])
		return REASON_SPOOFED_ND;
	slot = ep->slot;
	born = ep->born;
	claim = bpf_map_lookup_elem(&weft_claims, &slot);
	if (!claim)
		return REASON_INTERNAL;
	if (claim->born == born)
		return addr_equal(&claim->addr, addr) ? REASON_NONE : REASON_SPOOFED_ND;
	if (weft_tracing)
		return REASON_NONE;
	if (bpf_map_update_elem(&weft_claimed, addr, &born, BPF_NOEXIST)) {
		by = bpf_map_lookup_elem(&weft_claimed, addr);
		if (!by || *by != born)
			return REASON_SPOOFED_ND;
	}
	claim->addr = *addr;
	store_ordered(&claim->born, born);
	return REASON_NONE;
}

ALWAYS_INLINE int nd_solicited(weft_ctx *ctx, const struct weft_config *cfg,
			       const struct weft_endpoint *ep, const struct weft_pkt *p)
{
	struct weft_nd *nd = ctx_data(ctx) + ETH_LEN + IP6_LEN;
	int unspecified = !(p->src.d[0] | p->src.d[1]);
	int with_option;

	if ((void *)nd + ND_WITHOUT_OPTION > ctx_end(ctx))
		return REASON_TRUNCATED;
	if (!unspecified && !addr_is_link_local6(&p->src) && !owns(ep, &p->src))
		return REASON_SPOOFED_ND;
	if (addr_equal(&p->src, &cfg->gateway_ip6))
		return REASON_SPOOFED_ND;
	with_option = (void *)(nd + 1) <= ctx_end(ctx) && p->l3_size >= IP6_LEN + sizeof(*nd);
	/* Of a chained pod others learn: from the source, and from the target that it wants to be
	 * its own. */
	if (ep->flags & ENDPOINT_CHAINED)
		return nd_claim(ep, unspecified ? &nd->target : &p->src) ?: NEIGH_STACK;
	/* Duplicate address detection (RFC 4862): for the gateway's own address, the gateway
	 * answers by refusing the claim; for any other, nobody else has it. */
	if (unspecified)
		return addr_equal(&nd->target, &cfg->gateway_ip6) ? REASON_SPOOFED_ND
								  : NEIGH_ABSORB;
	if (!addr_equal(&nd->target, &cfg->gateway_ip6))
		return REASON_ND_TARGET;
	return nd_advertise(ctx, cfg, ep, p, with_option);
}

ALWAYS_INLINE int nd_advertised(weft_ctx *ctx, const struct weft_config *cfg,
				const struct weft_endpoint *ep, const struct weft_pkt *p)
{
	struct weft_nd *nd = ctx_data(ctx) + ETH_LEN + IP6_LEN;
	int reason;

	if ((void *)nd + ND_WITHOUT_OPTION > ctx_end(ctx))
		return REASON_TRUNCATED;
	if (!owns(ep, &nd->target) &&
	    !(addr_is_link_local6(&nd->target) && addr_equal(&nd->target, &p->src)))
		return REASON_SPOOFED_ND;
	if (addr_equal(&nd->target, &cfg->gateway_ip6))
		return REASON_SPOOFED_ND;
	if (!(ep->flags & ENDPOINT_CHAINED))
		return NEIGH_ABSORB;
	reason = nd_claim(ep, &p->src);
	nd = ctx_data(ctx) + ETH_LEN + IP6_LEN;
	if (!reason && (void *)nd + ND_WITHOUT_OPTION <= ctx_end(ctx))
		reason = nd_claim(ep, &nd->target);
	return reason ?: NEIGH_STACK;
}

/* ICMPv6 that never leaves the link: neighbour and router discovery, multicast listener reports. */
ALWAYS_INLINE int neigh_nd(weft_ctx *ctx, const struct weft_config *cfg,
			   const struct weft_endpoint *ep, const struct weft_pkt *p)
{
	int reason;

	if (p->family != 6 || p->proto != IPPROTO_ICMPV6)
		return NEIGH_NOT_ND;
	switch (p->icmp_type) {
	case ICMP6_NS:
	case ICMP6_NA:
		/* 255 proves that no router forwarded it (RFC 4861 section 7.1); an extension
		 * header before it has no honest use. */
		if (p->ttl != 255 || p->l4 != ETH_LEN + IP6_LEN)
			return REASON_SPOOFED_ND;
		if (p->l3_size < IP6_LEN + ND_WITHOUT_OPTION)
			return REASON_TRUNCATED;
		reason = nd_options(ctx, ep, p->l4 + ND_WITHOUT_OPTION, ETH_LEN + p->l3_size);
		if (reason)
			return reason;
		return p->icmp_type == ICMP6_NS ? nd_solicited(ctx, cfg, ep, p)
						: nd_advertised(ctx, cfg, ep, p);
	case ICMP6_RA:
	case ICMP6_REDIRECT:
		return REASON_SPOOFED_ND;
	case ICMP6_RS:
		if (!(ep->flags & ENDPOINT_CHAINED))
			return NEIGH_ABSORB;
		reason = nd_options(ctx, ep, p->l4 + RS_WITHOUT_OPTION, ETH_LEN + p->l3_size);
		if (!reason && p->src.d[0] | p->src.d[1])
			reason = nd_claim(ep, &p->src);
		return reason ?: NEIGH_STACK;
	case ICMP6_MLD_QUERY: /* a router's */
		return ep->flags & ENDPOINT_CHAINED ? REASON_SPOOFED_ND : NEIGH_ABSORB;
	case ICMP6_MLD_REPORT ... ICMP6_MLD_DONE:
	case ICMP6_MLD2_REPORT:
		if (!(ep->flags & ENDPOINT_CHAINED))
			return NEIGH_ABSORB;
		/* To a group of this link, from a link-local address or none (RFC 3810 section 5).
		 */
		if (p->ttl != 1 || p->dst.b[0] != 0xff)
			return REASON_SPOOFED_ND;
		if (!(p->src.d[0] | p->src.d[1]))
			return NEIGH_STACK;
		if (!addr_is_link_local6(&p->src))
			return REASON_SPOOFED_ND;
		return nd_claim(ep, &p->src) ?: NEIGH_STACK;
	}
	return NEIGH_NOT_ND;
}

#endif
