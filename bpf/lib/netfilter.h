/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_NETFILTER_H
#define WEFT_NETFILTER_H

/* What the netfilter programs see of a packet: it begins with its IP header. To be included before
 * all else. */

#define WEFT_NETFILTER
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_core_read.h>
#include "drop.h"
#include "headers.h"
#include "policy.h"
#include "provenance.h"

#define NF_DROP	    0
#define NF_ACCEPT   1
#define IF_LOOPBACK 1

struct nf_hook_state {
	struct net_device *in, *out;
} __attribute__((preserve_access_index));

struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
} __attribute__((preserve_access_index));

/* Whether an interface has a hook of Weft's, which sees what comes in or leaves by it, or is inside
 * of this host. */
ALWAYS_INLINE int is_hooked(__u32 ifindex)
{
	return ifindex == IF_LOOPBACK || bpf_map_lookup_elem(&weft_uplinks, &ifindex) ||
	       bpf_map_lookup_elem(&weft_ep_if, &ifindex);
}

/* Reads the addresses, and where the IP header ends: p->l4 counts from its beginning. Returns a
 * drop reason. */
ALWAYS_INLINE int read_packet(struct sk_buff *skb, struct weft_pkt *p)
{
	struct bpf_dynptr ptr;
	struct iphdr ip4;
	struct ipv6hdr ip6;

	if (bpf_dynptr_from_skb((void *)skb, 0, &ptr) ||
	    bpf_dynptr_read(&ip4, sizeof(ip4), &ptr, 0, 0))
		return REASON_TRUNCATED;
	p->len = skb->len;
	p->packets = 1;
	if (ip4.version == 4) {
		p->family = 4;
		p->ethertype = bpf_htons(ETH_P_IP);
		p->proto = ip4.protocol;
		p->ttl = ip4.ttl;
		p->l4 = ip4.ihl * 4;
		addr_from4(&p->src, ip4.saddr);
		addr_from4(&p->dst, ip4.daddr);
		return REASON_NONE;
	}
	if (bpf_dynptr_read(&ip6, sizeof(ip6), &ptr, 0, 0))
		return REASON_TRUNCATED;
	p->family = 6;
	p->ethertype = bpf_htons(ETH_P_IPV6);
	p->proto = ip6.nexthdr;
	p->ttl = ip6.hop_limit;
	p->l4 = sizeof(ip6);
	__builtin_memcpy(&p->src, &ip6.saddr, 16);
	__builtin_memcpy(&p->dst, &ip6.daddr, 16);
	return REASON_NONE;
}

/* Follows the extension headers, as parse_extensions does. Returns a drop reason. */
ALWAYS_INLINE int skip_extensions(const struct bpf_dynptr *ptr, struct weft_pkt *p)
{
	for (int i = 0; i <= MAX_EXT_HEADERS; i++) {
		struct weft_ext ext = {};
		__u32 len;

		if (!is_extension(p->proto))
			return REASON_NONE;
		if (bpf_dynptr_read(&ext, sizeof(ext), ptr, p->l4, 0))
			return REASON_TRUNCATED;
		len = extension_size(p->proto, &ext);
		if (p->proto == IPPROTO_FRAGMENT)
			p->frag = (ext.type << 8 | ext.left) & 0xfff8 ? FRAG_LATER : FRAG_FIRST;
		p->proto = ext.next;
		p->l4 += len;
		if (p->frag == FRAG_LATER)
			return REASON_NONE;
	}
	return REASON_EXTENSION_HEADERS;
}

/* Reads the protocol and the ports, and what a TCP segment or an ICMP message is. A later fragment
 * has none of these, and rules that name ports nothing to go by. Returns a drop reason. */
ALWAYS_INLINE int read_l4(struct sk_buff *skb, struct weft_pkt *p)
{
	__u8 head[14] = {};
	struct bpf_dynptr ptr;
	__be16 frag_off = 0;
	int reason;

	if (bpf_dynptr_from_skb((void *)skb, 0, &ptr))
		return REASON_INTERNAL;
	if (p->family == 4) {
		if (bpf_dynptr_read(&frag_off, sizeof(frag_off), &ptr, 6, 0))
			return REASON_TRUNCATED;
		if (frag_off & bpf_htons(0x1fff))
			p->frag = FRAG_LATER;
	} else {
		reason = skip_extensions(&ptr, p);
		if (reason)
			return reason;
	}
	if (p->frag == FRAG_LATER)
		return REASON_NONE;
	if (p->proto == IPPROTO_TCP ? bpf_dynptr_read(head, sizeof(head), &ptr, p->l4, 0)
				    : bpf_dynptr_read(head, 8, &ptr, p->l4, 0))
		return has_ports(p) ? REASON_TRUNCATED : REASON_NONE;
	if (has_ports(p)) {
		p->sport = *(__be16 *)head;
		p->dport = *(__be16 *)(head + 2);
	}
	if (p->proto == IPPROTO_TCP)
		p->tcp_flags = head[13];
	else if (p->proto == (p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		p->family == 4 ? parse_icmp4(p, (void *)head) : parse_icmp6(p, (void *)head);
	return REASON_NONE;
}

/* Whether the device is to write a checksum into the IP header, over the addresses that have been
 * read. */
ALWAYS_INLINE int overwrites_addresses(struct sk_buff *skb, const struct weft_pkt *p)
{
	return BPF_CORE_READ_BITFIELD(skb, ip_summed) == IP_SUMMED_PARTIAL &&
	       skb->csum_start - (int)(skb->data - skb->head) < p->l4;
}

/* Whether the packet is an ICMP error of this host's that quotes what was sealed. The kernel writes
 * such errors without IPv6 extension headers. Sets what p says of ICMP. */
ALWAYS_INLINE int quotes_sealed(struct sk_buff *skb, const struct weft_config *cfg,
				struct weft_pkt *p)
{
	union weft_quoted q = {};
	struct weft_icmp icmp;
	struct bpf_dynptr ptr;
	__u32 len = p->family == 4 ? sizeof(q.ip4) : sizeof(q.ip6);

	if (p->proto != (p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6))
		return 0;
	if (bpf_dynptr_from_skb((void *)skb, 0, &ptr) ||
	    bpf_dynptr_read(&icmp, sizeof(icmp), &ptr, p->l4, 0))
		return 0;
	if (p->family == 4)
		parse_icmp4(p, &icmp);
	else
		parse_icmp6(p, &icmp);
	if (!p->error)
		return 0;
	return bpf_dynptr_read(&q, len, &ptr, p->l4 + sizeof(icmp), 0) ||
	       is_quote_sealed(cfg, p, &q);
}

#endif
