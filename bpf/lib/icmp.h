/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_ICMP_H
#define WEFT_ICMP_H

#include "esp.h"
#include "policy.h"

/* How much of a refused IPv6 packet its error quotes: the headers and some payload. RFC 4443 allows
 * up to the minimum MTU; receivers need no more than the transport ports. */
#define QUOTE6	    88
#define QUOTE6_MIN  48
#define ERROR4_ROOM (IP4_LEN + 8)
#define ERROR6_ROOM (IP6_LEN + 8)

/* Reads the packet that an ICMP error quotes into p's addresses and ports. */
ALWAYS_INLINE int icmp_quoted4(weft_ctx *ctx, struct weft_pkt *p)
{
	__u32 at = p->l4 + 8;
	struct iphdr ip;
	__be16 ports[4];

	if (ctx_load(ctx, at, &ip, sizeof(ip)) || ip.version != 4 || ip.ihl < 5)
		return REASON_TRUNCATED;
	if (ip.frag_off & bpf_htons(0x1fff))
		return REASON_ICMP_NO_FLOW;
	if (ctx_load(ctx, at + ip.ihl * 4, ports, sizeof(ports)))
		return REASON_TRUNCATED;
	if (ip.saddr != p->dst.w[3])
		return REASON_ICMP_MISMATCH;
	addr_from4(&p->src, ip.saddr);
	addr_from4(&p->dst, ip.daddr);
	p->proto = ip.protocol;
	p->sport = ip.protocol == IPPROTO_ICMP ? ports[2] : ports[0];
	p->dport = ip.protocol == IPPROTO_ICMP ? ports[2] : ports[1];
	return REASON_NONE;
}

ALWAYS_INLINE int icmp_quoted6(weft_ctx *ctx, struct weft_pkt *p)
{
	__u32 at = p->l4 + 8;
	struct ipv6hdr ip;
	__be16 ports[4];
	__u8 next;

	if (ctx_load(ctx, at, &ip, sizeof(ip)) || ip.version != 6)
		return REASON_TRUNCATED;
	next = ip.nexthdr;
	at += IP6_LEN;
	/* The quoted packet may have extension headers; each says what follows and how long it is.
	 */
	for (int i = 0; i < MAX_EXT_HEADERS; i++) {
		if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS &&
		    next != IPPROTO_FRAGMENT)
			break;
		if (ctx_load(ctx, at, ports, sizeof(ports)))
			return REASON_TRUNCATED;
		at += next == IPPROTO_FRAGMENT ? 8 : (((__u8 *)ports)[1] + 1) * 8;
		next = ((__u8 *)ports)[0];
	}
	if (ctx_load(ctx, at, ports, sizeof(ports)))
		return REASON_TRUNCATED;
	if (!addr_equal((union weft_addr *)&ip.saddr, &p->dst))
		return REASON_ICMP_MISMATCH;
	__builtin_memcpy(&p->src, &ip.saddr, 16);
	__builtin_memcpy(&p->dst, &ip.daddr, 16);
	p->proto = next;
	p->sport = next == IPPROTO_ICMPV6 ? ports[2] : ports[0];
	p->dport = next == IPPROTO_ICMPV6 ? ports[2] : ports[1];
	return REASON_NONE;
}

/* Whether an error from the wire may speak of the packet that it quotes, whose addresses p holds by
 * now. What is sealed is seen by the two nodes at its ends and by nobody between them: an error
 * about it comes sealed by the other, or it is forged. */
ALWAYS_INLINE int icmp_origin(const struct weft_config *cfg, const struct weft_pkt *p)
{
	const struct weft_route *to;

	if (!weft_sealing)
		return REASON_NONE;
	to = route_of(&p->dst);
	if (!to || !must_seal(cfg, p))
		return REASON_NONE;
	if (!p->node)
		return to->node || to->flags & ROUTE_NO_NODE ? REASON_ICMP_UNSEALED : REASON_NONE;
	if (to->node != p->node)
		return REASON_ICMP_MISMATCH;
	/* Who is outside, relayed by that node, has not seen the packet either; unless it was for
	 * the node's own address, which may be translated to somebody outside. */
	return p->identity == IDENTITY_WORLD && !(to->flags & ROUTE_HOST) ? REASON_ICMP_UNSEALED
									  : REASON_NONE;
}

/* The same for an error that comes to a pod out of the host's stack, which came to this node in
 * cleartext: by an interface without hooks, or with its addresses translated. Returns a drop
 * reason; p is unchanged. */
SUBPROGRAM int icmp_plain(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p)
{
	union weft_addr src, dst;
	int reason;
	__u8 proto;

	if (!cfg || !p)
		return REASON_INTERNAL;
	if (!weft_sealing || !p->error)
		return REASON_NONE;
	if (p->frag)
		return REASON_ICMP_NO_FLOW;
	src = p->src;
	dst = p->dst;
	proto = p->proto;
	reason = p->family == 4 ? icmp_quoted4(ctx, p) : icmp_quoted6(ctx, p);
	if (!reason)
		reason = icmp_origin(cfg, p);
	p->src = src;
	p->dst = dst;
	p->proto = proto;
	p->sport = p->dport = 0;
	return reason;
}

/* The IP header that an error quotes. Returns 0 if it is there. */
ALWAYS_INLINE int quote_load(weft_ctx *ctx, const struct weft_pkt *p, union weft_quoted *q)
{
	if (p->family == 4)
		return ctx_load(ctx, p->l4 + 8, q, sizeof(q->ip4));
	return ctx_load(ctx, p->l4 + 8, q, sizeof(q->ip6));
}

/* Whether an ICMP error may be in what the parser has refused: it has not come to the transport
 * header, or that is ICMP's and not whole. */
ALWAYS_INLINE int may_hide_error(const struct weft_pkt *p, int reason)
{
	if (p->family == 4)
		return p->proto == IPPROTO_ICMP;
	return reason == REASON_EXTENSION_HEADERS ||
	       (p->proto != IPPROTO_TCP && p->proto != IPPROTO_UDP && p->proto != IPPROTO_UDPLITE);
}

/* Whether an error in cleartext that is for this host, or to be routed by it, is about what the
 * host sends sealed: to other nodes' pods, not to other hosts. Its kernel looks up the socket, or
 * the route whose MTU is lowered, by the quoted addresses alone, behind all headers and after
 * reassembly, so what hides them is refused: no honest router does. reason is the parser's. Returns
 * a drop reason. */
SUBPROGRAM int icmp_to_host(weft_ctx *ctx, const struct weft_config *cfg, const struct weft_pkt *p,
			    int reason)
{
	const struct weft_route *to;
	union weft_quoted q = {};
	union weft_addr src, dst;

	if (!cfg || !p)
		return REASON_INTERNAL;
	if (!weft_sealing || !(cfg->flags & CONFIG_SEAL))
		return REASON_NONE;
	if (reason)
		return may_hide_error(p, reason) ? reason : REASON_NONE;
	if (!p->error)
		return REASON_NONE;
	if (p->frag || quote_load(ctx, p, &q) || quote_addresses(p, &q, &src, &dst))
		return REASON_ICMP_UNSEALED;
	to = route_of(&dst);
	if (!to || to->flags & ROUTE_HOST || !(to->node || to->flags & ROUTE_NO_NODE) ||
	    is_plain(&dst))
		return REASON_NONE;
	/* That a sender's packets may travel in cleartext counts if the error goes to that one. To
	 * whomever else it goes, the kernel may look up a route by the destination alone. */
	return addr_equal(&src, &p->dst) && is_plain(&src) ? REASON_NONE : REASON_ICMP_UNSEALED;
}

/* Whether an error of this host's to another node's host quotes what that has sent sealed: in
 * cleartext, this much of it would be readable after all. p is unchanged. */
SUBPROGRAM int icmp_quotes_sealed(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p)
{
	union weft_quoted q = {};

	if (!cfg || !p)
		return 1;
	if (!weft_sealing || !p->error)
		return 0;
	return quote_load(ctx, p, &q) || is_quote_sealed(cfg, p, &q);
}

/* Gives an error back what icmp_related has put by. */
SUBPROGRAM int icmp_unquote(struct weft_pkt *p)
{
	const struct weft_judgement *j = judgement();

	if (!j || !p)
		return 0;
	p->src = j->src;
	p->dst = j->dst;
	p->proto = j->proto;
	p->sport = p->dport = 0;
	return 0;
}

/* Whether an error is about an answer to what has not left the stack: nobody has received that, and
 * none can have answered. */
ALWAYS_INLINE int quotes_no_answer(struct weft_flow_ref ref)
{
	__u32 flags = ref.flow->flags;

	return flags & FLOW_UNCONFIRMED && ref.dir != !!(flags & FLOW_FIRST_IS_1);
}

/* Finds the flow that an ICMP error is about (RFC 5508's sense of "related"). Returns a drop
 * reason; p is what it quotes until icmp_unquote. */
SUBPROGRAM int icmp_related(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			    int *via_stack)
{
	struct weft_judgement *j = judgement();
	struct weft_flow_ref ref = {};
	union weft_addr src;
	int reason;

	if (!cfg || !p || !j || !via_stack)
		return REASON_INTERNAL;
	src = p->src;
	j->src = src;
	j->dst = p->dst;
	j->proto = p->proto;
	/* Its quote may be in a fragment to come, and what would be read here behind the first
	 * one's end. */
	if (p->frag)
		return REASON_ICMP_NO_FLOW;
	reason = p->family == 4 ? icmp_quoted4(ctx, p) : icmp_quoted6(ctx, p);
	/* A router may report on anybody's packet, a pod only on one that was sent to it (RFC
	 * 5927). */
	if (!reason && p->hook == HOOK_FROM_POD && !addr_equal(&p->dst, &src))
		reason = REASON_ICMP_MISMATCH;
	if (!reason && p->hook != HOOK_FROM_POD)
		reason = icmp_origin(cfg, p);
	if (!reason) {
		ref = flow_find(p);
		if (!ref.flow || !flow_same_ends(cfg, p, ref.flow, ref.dir) ||
		    quotes_no_answer(ref))
			reason = REASON_ICMP_NO_FLOW;
		else
			*via_stack = !!(ref.flow->flags & FLOW_VIA_STACK);
	}
	return reason;
}

/* Whether an error that comes to a pod out of the host's stack is about a conversation that it may
 * have. What the pod began itself is judged as it leaves: its other end may be translated here. p
 * is unchanged. */
SUBPROGRAM int icmp_delivered(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p)
{
	struct weft_flow_ref ref;
	union weft_addr src, dst;
	__u32 initiator;
	int reason;
	__u8 proto;

	if (!cfg || !p)
		return REASON_INTERNAL;
	if (p->frag)
		return REASON_ICMP_NO_FLOW;
	src = p->src;
	dst = p->dst;
	proto = p->proto;
	reason = p->family == 4 ? icmp_quoted4(ctx, p) : icmp_quoted6(ctx, p);
	if (!reason) {
		ref = flow_find(p);
		if (!ref.flow || !flow_same_ends(cfg, p, ref.flow, ref.dir) ||
		    (ref.flow->flags & FLOW_UNCONFIRMED && !p->answers))
			reason = REASON_ICMP_NO_FLOW;
		if (!reason && policy_began(cfg, p, &initiator) == BEGAN_OTHER)
			reason = policy_judge(p, POLICY_SLOTS(p->slot, 0), PART_REPLY, initiator);
	}
	p->src = src;
	p->dst = dst;
	p->proto = proto;
	p->sport = p->dport = 0;
	return reason;
}

ALWAYS_INLINE int icmp_write4(weft_ctx *ctx, const struct weft_config *cfg,
			      const struct weft_pkt *p, __u8 type, __u8 code, __u16 mtu,
			      __u32 quote)
{
	struct iphdr *ip = ctx_data(ctx) + ETH_LEN;
	struct weft_icmp *icmp = (void *)(ip + 1);
	__u64 sum = 0;

	if ((void *)(icmp + 1) > ctx_end(ctx))
		return -1;
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = 0;
	ip->tot_len = bpf_htons(ERROR4_ROOM + quote);
	ip->id = 0;
	ip->frag_off = 0;
	ip->ttl = 64;
	ip->protocol = IPPROTO_ICMP;
	ip->check = 0;
	ip->saddr = cfg->node_ip4 ?: cfg->gateway_ip4;
	ip->daddr = p->src.w[3];
	csum_words(ip, ctx_end(ctx), 5, 5, &sum);
	ip->check = csum_fold(sum);
	icmp->type = type;
	icmp->code = code;
	icmp->check = 0;
	icmp->id = 0;
	icmp->seq = bpf_htons(mtu); /* RFC 1191: next-hop MTU; 0 for other errors */
	sum = 0;
	if (csum_words(icmp, ctx_end(ctx), 2 + quote / 4, 22, &sum))
		return -1;
	icmp->check = csum_fold(sum);
	return 0;
}

ALWAYS_INLINE int icmp_write6(weft_ctx *ctx, const struct weft_config *cfg,
			      const struct weft_pkt *p, __u8 type, __u32 mtu, __u32 quote)
{
	struct ipv6hdr *ip = ctx_data(ctx) + ETH_LEN;
	struct weft_icmp *icmp = (void *)(ip + 1);
	const union weft_addr *from = &cfg->node_ip6;
	__u64 sum = 0;

	if ((void *)(icmp + 1) > ctx_end(ctx))
		return -1;
	if (!(from->d[0] | from->d[1]))
		from = &cfg->gateway_ip6;
	*(__be32 *)ip = bpf_htonl(0x60000000);
	ip->payload_len = bpf_htons(8 + quote);
	ip->nexthdr = IPPROTO_ICMPV6;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, from, 16);
	__builtin_memcpy(&ip->daddr, &p->src, 16);
	icmp->type = type;
	icmp->code = 0;
	icmp->check = 0;
	icmp->id = bpf_htons(mtu >> 16);
	icmp->seq = bpf_htons(mtu & 0xffff);
	csum_add_addr(from, &sum);
	csum_add_addr(&p->src, &sum);
	sum += bpf_htonl(8 + quote);
	sum += bpf_htonl(IPPROTO_ICMPV6);
	if (csum_words(icmp, ctx_end(ctx), 2 + quote / 4, 24, &sum))
		return -1;
	icmp->check = csum_fold(sum);
	return 0;
}

/* Must an error about p stay unsent? (RFC 1122 section 3.2.2, RFC 4443 section 2.4 e) Its source is
 * a single host's by now: the hooks have seen to that. */
ALWAYS_INLINE int icmp_must_not(const struct weft_pkt *p, const struct ethhdr *eth)
{
	if (p->family == 6 && p->proto == IPPROTO_ICMPV6 && p->icmp_type == ICMP6_REDIRECT)
		return 1;
	return p->error || p->frag == FRAG_LATER || eth->h_dest[0] & 1 || weft_tracing;
}

ALWAYS_INLINE int icmp_token(const struct weft_pkt *p)
{
	__u32 owner = owner_of(p);
	struct weft_owner *o;

	if (take_token(owner, BUCKET_ICMP, ICMP_ERRORS_SHARE, ICMP_ERRORS_PER_SEC, clock_mono()))
		return 1;
	o = owner_at(owner);
	if (o)
		__sync_fetch_and_add(&o->errors_suppressed, 1);
	return 0;
}

/* Replaces the frame by an ICMP error about it and sends that back to the frame's sender by
 * ifindex. mtu is 0 for "time exceeded", the limit for "too big". Returns a context
 * verdict: CTX_DROP if no error may, or can, be sent. The caller has counted the drop. */
SUBPROGRAM int icmp_refuse(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			   __u32 mtu, __u32 ifindex)
{
	struct ethhdr *eth = ctx_data(ctx);
	__u32 quote, room;
	__u8 to[6], from[6];
	int failed;

	if (!cfg || !p || (void *)(eth + 1) > ctx_end(ctx) || icmp_must_not(p, eth))
		return CTX_DROP;
	if (!icmp_token(p))
		return CTX_DROP;
	mac_copy(to, eth->h_source);
	mac_copy(from, eth->h_dest);
	if (p->family == 4) {
		/* A TCP header whole: the kernel does not cut a frame before a checksum left to the
		 * device. */
		quote = p->l4 - ETH_LEN + (p->proto == IPPROTO_TCP ? 20 : 8);
		room = ERROR4_ROOM;
	} else {
		quote = p->l3_size >= QUOTE6 ? QUOTE6 : p->l3_size & ~3;
		if (quote < QUOTE6_MIN)
			return CTX_DROP;
		room = ERROR6_ROOM;
	}
	if (p->len < ETH_LEN + quote || quote > QUOTE6 || ctx_reshape(ctx, ETH_LEN + quote, room))
		return CTX_DROP;
	eth = ctx_data(ctx);
	if ((void *)(eth + 1) > ctx_end(ctx))
		return CTX_DROP;
	mac_copy(eth->h_dest, to);
	mac_copy(eth->h_source, from);
	eth->h_proto = p->ethertype;
	if (p->family == 4)
		failed = icmp_write4(ctx, cfg, p, mtu ? ICMP4_UNREACHABLE : ICMP4_TIME_EXCEEDED,
				     mtu ? 4 : 0, mtu, quote);
	else
		failed =
		    icmp_write6(ctx, cfg, p, mtu ? ICMP6_TOO_BIG : ICMP6_TIME_EXCEEDED, mtu, quote);
	if (failed)
		return CTX_DROP;
	/* An error about a sealed packet quotes it: it goes back the same way. From here on it is
	 * what p is of, so that nobody lowers the MSS of a SYN that is gone. */
	if (weft_sealing && p->node) {
		p->identity = IDENTITY_HOST;
		p->proto = p->family == 4 ? IPPROTO_ICMP : IPPROTO_ICMPV6;
		return CTX_SEAL;
	}
	return ctx_reply(ctx, ifindex);
}

#endif
