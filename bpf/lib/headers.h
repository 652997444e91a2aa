/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_HEADERS_H
#define WEFT_HEADERS_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include "csum.h"

#define IPOPT_LOOSE_ROUTE  131
#define IPOPT_STRICT_ROUTE 137
#define NEXT_MOBILITY	   135
#define TCP_FIN		   0x01
#define TCP_SYN		   0x02
#define TCP_RST		   0x04
#define TCP_ACK		   0x10

struct weft_icmp {
	__u8 type, code;
	__be16 check;
	__be16 id, seq;
};

enum {
	ICMP4_ECHO_REPLY = 0,
	ICMP4_UNREACHABLE = 3,
	ICMP4_QUENCH = 4,
	ICMP4_REDIRECT = 5,
	ICMP4_ECHO = 8,
	ICMP4_TIME_EXCEEDED = 11,
	ICMP4_PARAMETER = 12,
	ICMP6_TOO_BIG = 2,
	ICMP6_TIME_EXCEEDED = 3,
	ICMP6_ERROR_MAX = 127,
	ICMP6_ECHO = 128,
	ICMP6_ECHO_REPLY = 129,
	ICMP6_MLD_QUERY = 130,
	ICMP6_MLD_REPORT = 131,
	ICMP6_MLD_DONE = 132,
	ICMP6_RS = 133,
	ICMP6_RA = 134,
	ICMP6_NS = 135,
	ICMP6_NA = 136,
	ICMP6_REDIRECT = 137,
	ICMP6_MLD2_REPORT = 143,
};

struct weft_options {
	__u8 bytes[40];
	__u32 at, stop;
	int reason;
};

/* One option. Returns 1 when there is nothing more to look at. */
static long step_option4(__u32 i, void *state)
{
	struct weft_options *o = state;
	__u32 at = o->at, len;

	if (at >= o->stop || at >= sizeof(o->bytes) || o->bytes[at] == 0)
		return 1;
	if (o->bytes[at] == 1) {
		o->at++;
		return 0;
	}
	o->reason = REASON_BAD_IP_HEADER;
	if (at + 1 >= o->stop || at + 1 >= sizeof(o->bytes))
		return 1;
	len = o->bytes[at + 1];
	if (len < 2 || at + len > o->stop)
		return 1;
	o->reason = REASON_SOURCE_ROUTE;
	if (o->bytes[at] == IPOPT_LOOSE_ROUTE || o->bytes[at] == IPOPT_STRICT_ROUTE)
		return 1;
	o->reason = REASON_NONE;
	o->at += len;
	return 0;
}

/* IPv4 options are carried, but for source routes: those choose the path past every check. */
SUBPROGRAM int parse_options4(weft_ctx *ctx, __u32 len)
{
	struct weft_options o = {.stop = len};

	if (outside(len, 4, sizeof(o.bytes)))
		return REASON_BAD_IP_HEADER;
	if (ctx_load(ctx, ETH_LEN + IP4_LEN, o.bytes, len))
		return REASON_TRUNCATED;
	bpf_loop(sizeof(o.bytes), step_option4, &o, 0);
	return o.reason;
}

ALWAYS_INLINE void parse_icmp4(struct weft_pkt *p, const struct weft_icmp *icmp)
{
	p->icmp_type = icmp->type;
	switch (icmp->type) {
	case ICMP4_ECHO:
	case ICMP4_ECHO_REPLY:
		p->sport = p->dport = icmp->id;
		return;
	case ICMP4_UNREACHABLE:
	case ICMP4_QUENCH:
	case ICMP4_REDIRECT:
	case ICMP4_TIME_EXCEEDED:
	case ICMP4_PARAMETER:
		p->error = 1;
	}
	p->slow = 1;
}

ALWAYS_INLINE void parse_icmp6(struct weft_pkt *p, const struct weft_icmp *icmp)
{
	p->icmp_type = icmp->type;
	if (icmp->type == ICMP6_ECHO || icmp->type == ICMP6_ECHO_REPLY) {
		p->sport = p->dport = icmp->id;
		return;
	}
	p->error = icmp->type <= ICMP6_ERROR_MAX;
	p->slow = 1;
}

/* Neighbour and router discovery, and redirects of either family: what governs a host's own link.
 */
ALWAYS_INLINE int is_link_control(const struct weft_pkt *p)
{
	if (p->family == 4)
		return p->proto == IPPROTO_ICMP && p->icmp_type == ICMP4_REDIRECT;
	return p->proto == IPPROTO_ICMPV6 && p->icmp_type >= ICMP6_RS &&
	       p->icmp_type <= ICMP6_REDIRECT;
}

/* The transport header at p->l4. size is the transport payload's length by the IP header. A first
 * fragment must hold the header whole: one that does not is an old attack on filters. */
ALWAYS_INLINE int parse_l4(weft_ctx *ctx, struct weft_pkt *p, __u32 size)
{
	__u32 short_reason = p->frag == FRAG_FIRST ? REASON_FRAGMENT_TINY : REASON_TRUNCATED;
	void *end = ctx_end(ctx), *l4 = ctx_data(ctx);
	__u32 header = 8, at = p->l4;

	/* Never true; the verifier cannot know. */
	if (at > MAX_HEADERS)
		return REASON_INTERNAL;
	l4 += at;
	if (p->proto == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if (size < sizeof(*tcp))
			return short_reason;
		if ((void *)(tcp + 1) > end)
			return REASON_TRUNCATED;
		header = tcp->doff * 4;
		if (header < sizeof(*tcp))
			return REASON_BAD_L4_HEADER;
		if (header > size)
			return short_reason;
		p->sport = tcp->source;
		p->dport = tcp->dest;
		p->tcp_flags = ((__u8 *)tcp)[13];
	} else if (p->proto == IPPROTO_UDP || p->proto == IPPROTO_UDPLITE) {
		struct udphdr *udp = l4;

		if (size < sizeof(*udp))
			return short_reason;
		if ((void *)(udp + 1) > end)
			return REASON_TRUNCATED;
		if (p->proto == IPPROTO_UDP && bpf_ntohs(udp->len) < sizeof(*udp))
			return REASON_BAD_L4_HEADER;
		if (p->proto == IPPROTO_UDP && p->frag == FRAG_NONE && bpf_ntohs(udp->len) > size)
			return REASON_BAD_L4_HEADER;
		p->sport = udp->source;
		p->dport = udp->dest;
	} else if (p->proto == IPPROTO_SCTP) {
		__be16 *ports = l4;

		header = 12;
		if (size < header)
			return short_reason;
		if (l4 + header > end)
			return REASON_TRUNCATED;
		p->sport = ports[0];
		p->dport = ports[1];
	} else if (p->proto == (p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
		struct weft_icmp *icmp = l4;

		if (size < sizeof(*icmp))
			return short_reason;
		if ((void *)(icmp + 1) > end)
			return REASON_TRUNCATED;
		if (p->family == 4)
			parse_icmp4(p, icmp);
		else
			parse_icmp6(p, icmp);
	}
	if (unlikely(ctx_segment(ctx)))
		p->l3_size = p->l4 + header + ctx_segment(ctx) - ETH_LEN;
	return REASON_NONE;
}

ALWAYS_INLINE int parse_ip4(weft_ctx *ctx, struct weft_pkt *p)
{
	void *end = ctx_end(ctx);
	struct iphdr *ip = ctx_data(ctx) + ETH_LEN;
	__u32 ihl, total;
	__u64 sum = 0;
	__u16 frag;

	if ((void *)(ip + 1) > end)
		return REASON_TRUNCATED;
	ihl = ip->ihl * 4;
	total = bpf_ntohs(ip->tot_len);
	/* A GSO frame above 64 KiB (BIG TCP). */
	if (unlikely(!total) && ctx_segment(ctx))
		total = p->len - ETH_LEN;
	if (ip->version != 4 || ihl < IP4_LEN || total < ihl)
		return REASON_BAD_IP_HEADER;
	if (total > p->len - ETH_LEN)
		return REASON_TRUNCATED;
	addr_from4(&p->src, ip->saddr);
	addr_from4(&p->dst, ip->daddr);
	p->family = 4;
	p->proto = ip->protocol;
	p->ttl = ip->ttl;
	p->l4 = ETH_LEN + ihl;
	p->l3_size = total;

	csum_words(ip, end, 5, 5, &sum);
	if (unlikely(ihl > IP4_LEN)) {
		int reason;

		p->slow = 1;
		if (csum_words(ip + 1, end, ip->ihl - 5, 10, &sum))
			return REASON_TRUNCATED;
		reason = parse_options4(ctx, ihl - IP4_LEN);
		if (reason)
			return reason;
	}
	if (csum_fold(sum))
		return REASON_BAD_IP_CHECKSUM;

	frag = bpf_ntohs(ip->frag_off);
	if (unlikely(frag & 0x3fff)) {
		p->slow = 1;
		p->frag_id = ip->id;
		p->frag_proto = ip->protocol;
		p->frag_off = (frag & 0x1fff) << 3;
		p->frag_len = total - ihl;
		p->frag = p->frag_off ? FRAG_LATER : FRAG_FIRST;
		if (p->frag == FRAG_LATER)
			return REASON_NONE;
	}
	return parse_l4(ctx, p, total - ihl);
}

struct weft_ext {
	__u8 next, len;
	__u8 type, left; /* routing header; the fragment header's offset field */
	__be32 id;	 /* fragment header */
};

/* Whether a header is one that says what the next is, and how long it is. */
ALWAYS_INLINE int is_extension(__u8 proto)
{
	switch (proto) {
	case IPPROTO_HOPOPTS:
	case IPPROTO_ROUTING:
	case IPPROTO_DSTOPTS:
	case IPPROTO_AH:
	case IPPROTO_FRAGMENT:
	case NEXT_MOBILITY:
		return 1;
	default:
		return 0;
	}
}

/* The size of an extension header in bytes (RFC 8200 section 4, RFC 4302 section 2.2). */
ALWAYS_INLINE __u32 extension_size(__u8 proto, const struct weft_ext *ext)
{
	if (proto == IPPROTO_FRAGMENT)
		return sizeof(*ext);
	return proto == IPPROTO_AH ? (ext->len + 2) * 4 : (ext->len + 1) * 8;
}

/* Follows the extension headers from p->proto at p->l4. */
ALWAYS_INLINE int parse_extensions(weft_ctx *ctx, struct weft_pkt *p)
{
	for (int i = 0; i <= MAX_EXT_HEADERS; i++) {
		struct weft_ext *ext = ctx_data(ctx);
		__u32 len, at = p->l4;

		if (!is_extension(p->proto))
			return REASON_NONE;
		p->slow = 1;
		if (at > MAX_HEADERS)
			return REASON_INTERNAL;
		ext = (void *)ext + at;
		if ((void *)(ext + 1) > ctx_end(ctx))
			return REASON_TRUNCATED;
		len = extension_size(p->proto, ext);
		if (p->proto == IPPROTO_ROUTING && ext->type == 0)
			return REASON_SOURCE_ROUTE;
		if (p->proto == IPPROTO_FRAGMENT) {
			__u16 off = ext->type << 8 | ext->left;

			p->frag_proto = ext->next;
			p->frag_len = p->l3_size - (p->l4 - ETH_LEN) - 8;
			p->frag_id = ext->id;
			p->frag_off = off & 0xfff8;
			if (p->frag_off)
				p->frag = FRAG_LATER;
			else if (off & 1)
				p->frag = FRAG_FIRST; /* neither: an atomic fragment, RFC 6946 */
		}
		p->proto = ext->next;
		if (p->l4 + len > MAX_HEADERS)
			return REASON_EXTENSION_HEADERS;
		p->l4 += len;
		if (p->frag == FRAG_LATER)
			return REASON_NONE;
	}
	return REASON_EXTENSION_HEADERS;
}

ALWAYS_INLINE int parse_ip6(weft_ctx *ctx, struct weft_pkt *p)
{
	struct ipv6hdr *ip = ctx_data(ctx) + ETH_LEN;
	__u32 total;
	int reason;

	if ((void *)(ip + 1) > ctx_end(ctx))
		return REASON_TRUNCATED;
	if (ip->version != 6)
		return REASON_BAD_IP_HEADER;
	total = IP6_LEN + bpf_ntohs(ip->payload_len);
	if (unlikely(!ip->payload_len) && ctx_segment(ctx))
		total = p->len - ETH_LEN;
	if (total > p->len - ETH_LEN)
		return REASON_TRUNCATED;
	__builtin_memcpy(&p->src, &ip->saddr, 16);
	__builtin_memcpy(&p->dst, &ip->daddr, 16);
	/* The maps hold IPv4 addresses in this form; a packet must not (RFC 6890). */
	if (addr_is_mapped4(&p->src) || addr_is_mapped4(&p->dst))
		return REASON_MARTIAN;
	p->family = 6;
	p->proto = ip->nexthdr;
	p->ttl = ip->hop_limit;
	p->l4 = ETH_LEN + IP6_LEN;
	p->l3_size = total;

	reason = parse_extensions(ctx, p);
	if (reason)
		return reason;
	if (p->l4 - ETH_LEN > total)
		return REASON_TRUNCATED;
	if (p->frag == FRAG_LATER)
		return REASON_NONE;
	return parse_l4(ctx, p, total - (p->l4 - ETH_LEN));
}

/* Whether the frame says that it is IP, whatever could be read of it. */
ALWAYS_INLINE int is_ip(const struct weft_pkt *p)
{
	return p->ethertype == bpf_htons(ETH_P_IP) || p->ethertype == bpf_htons(ETH_P_IPV6);
}

/* Fills p from the frame. Returns the reason to drop it, if there is one; p holds what was read
 * until then. Frames that are not IP leave p->family 0. */
ALWAYS_INLINE int parse_frame(weft_ctx *ctx, struct weft_pkt *p)
{
	struct ethhdr *eth = ctx_data(ctx);

	p->len = ctx_len(ctx);
	p->packets = ctx_packets(ctx);
	p->ifindex = ctx_ifindex(ctx);
	if ((void *)(eth + 1) > ctx_end(ctx))
		return REASON_TRUNCATED;
	p->ethertype = eth->h_proto;
	if (ctx_tagged(ctx) || p->ethertype == bpf_htons(ETH_P_8021Q) ||
	    p->ethertype == bpf_htons(ETH_P_8021AD)) {
		p->tagged = 1;
		return REASON_NONE;
	}
	if (p->ethertype == bpf_htons(ETH_P_IP))
		return parse_ip4(ctx, p);
	if (p->ethertype == bpf_htons(ETH_P_IPV6))
		return parse_ip6(ctx, p);
	return REASON_NONE;
}

#endif
