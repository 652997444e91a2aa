/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_OPEN_H
#define WEFT_OPEN_H

#include "sealer.h"
#include "segment.h"

/* Opening. Nothing of the packet is believed, and no state changes, before its tag has been
 * verified. */

#define OPEN_NOT_ESP   (-1) /* for the host's stack: other UDP, or the agent's own */
#define OPEN_ELSEWHERE (-2) /* redirected to who opens it */

/* Reads the outer headers. Returns 1 for a packet to this node's ESP port, 0 for others, and fills
 * o and the addresses in p. Outer IPv4 options and IPv6 extension headers are not for us: no peer
 * sends them. */
ALWAYS_INLINE int open_outer(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			     struct weft_job *o)
{
	struct ethhdr *eth = ctx_data(ctx);
	struct iphdr *ip4 = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	struct udphdr *udp;
	__u32 room;

	if ((void *)(ip4 + 1) > ctx_end(ctx))
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if (ip4->version != 4 || ip4->ihl != 5 || ip4->protocol != IPPROTO_UDP ||
		    ip4->daddr != cfg->node_ip4)
			return 0;
		o->family = 4;
		o->at = ETH_LEN + IP4_LEN;
		o->fragment = !!(ip4->frag_off & bpf_htons(0x3fff));
		o->ecn = ip4->tos & 3;
		room = bpf_ntohs(ip4->tot_len) - IP4_LEN;
		p->src.w[0] = p->src.w[1] = p->dst.w[0] = p->dst.w[1] = 0;
		p->src.w[2] = p->dst.w[2] = bpf_htonl(0xffff);
		p->src.w[3] = ip4->saddr;
		p->dst.w[3] = ip4->daddr;
		udp = (void *)(ip4 + 1);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		if ((void *)(ip6 + 1) > ctx_end(ctx) || ip6->nexthdr != IPPROTO_UDP)
			return 0;
		__builtin_memcpy(&p->src, &ip6->saddr, 16);
		__builtin_memcpy(&p->dst, &ip6->daddr, 16);
		if (!addr_equal(&p->dst, &cfg->node_ip6))
			return 0;
		o->family = 6;
		o->fragment = 0;
		o->at = ETH_LEN + IP6_LEN;
		o->ecn = bpf_ntohl(*(__be32 *)ip6) >> 20 & 3;
		room = bpf_ntohs(ip6->payload_len);
		udp = (void *)(ip6 + 1);
	} else {
		return 0;
	}
	/* A later fragment has no ports: it is ours only if its datagram was, which nobody can
	 * tell. */
	if (o->fragment && ip4->frag_off & bpf_htons(0x1fff))
		return 0;
	if ((void *)(udp + 1) > ctx_end(ctx) || udp->dest != cfg->esp_port)
		return 0;
	o->udp = bpf_ntohs(udp->len);
	o->text = o->at + UDP_LEN + ESP_HEAD_LEN;
	o->len = o->udp - UDP_LEN - ESP_HEAD_LEN - ESP_ICV_LEN;
	p->family = o->family;
	p->proto = IPPROTO_UDP;
	p->sport = udp->source;
	p->dport = udp->dest;
	p->len = ctx_len(ctx);
	p->packets = 1;
	p->ifindex = ctx_ifindex(ctx);
	if (o->udp > room || o->at + o->udp > p->len)
		o->udp = 0; /* says more than there is */
	return 1;
}

/* Several ESP packets in one, as GRO merges them or a virtual machine sends them: each has a number
 * and a tag of its own, and one frame can become one packet only. Returns a drop reason. */
ALWAYS_INLINE int open_merged(weft_ctx *ctx, struct weft_job *o)
{
	if (o->fragment || ctx_load(ctx, o->at + UDP_LEN, &o->esp, sizeof(o->esp)))
		return REASON_ESP_MALFORMED;
	return REASON_NONE;
}

/* The SPI and what follows. Returns OPEN_NOT_ESP for what the agent receives: RFC 3948
 * section 2.2's marker, and its keep-alives of one byte. */
ALWAYS_INLINE int open_esp(weft_ctx *ctx, struct weft_job *o)
{
	__u32 at = o->at + UDP_LEN;

	if (o->udp == UDP_LEN + 1)
		return OPEN_NOT_ESP;
	if (o->udp < UDP_LEN + 4 || ctx_load(ctx, at, &o->esp.spi, 4))
		return REASON_ESP_MALFORMED;
	if (!o->esp.spi)
		return OPEN_NOT_ESP;
	if (ctx_segment(ctx))
		return open_merged(ctx, o);
	if (o->fragment)
		return REASON_ESP_FRAGMENT;
	if (o->udp < UDP_LEN + ESP_HEAD_LEN + ESP_TEXT_MIN + ESP_ICV_LEN || (o->udp & 3) ||
	    o->udp > UDP_LEN + ESP_HEAD_LEN + MAX_TEXT + ESP_ICV_LEN ||
	    ctx_load(ctx, at, &o->esp, sizeof(o->esp)))
		return REASON_ESP_MALFORMED;
	return REASON_NONE;
}

/* Whether others than this hook open it: the sealer, or this hook again, once the segmentation veth
 * has cut it. Returns 0 if it is this hook's, OPEN_ELSEWHERE or a drop reason. */
ALWAYS_INLINE int open_elsewhere(weft_ctx *ctx, const struct weft_config *cfg,
				 const struct weft_pkt *p, struct weft_job *job)
{
#ifndef WEFT_XDP
	struct weft_sealer_say say = {.kind = SEALER_OPEN, .count = 1, .id = job->id};
	__u32 merged = ctx_segment(ctx), port = bpf_ntohs(p->sport);
	struct weft_sa_in *sa;
	int held, reason, act;

	if (!merged && !cfg->sealer_ifindex)
		return 0;
	sa = bpf_map_lookup_elem(&weft_sa_in, &job->id);
	held = sa && sa->head.sealer & SEALER_HOLDS;
	if (merged) {
		say.count =
		    ctx_packets(ctx) > SEALER_COUNT_MAX ? SEALER_COUNT_MAX : ctx_packets(ctx);
	} else {
		if (!sa || !held)
			return 0;
		/* The port is anybody's to choose: once the peer's sealer is known to send, all go
		 * its way. A copy from another port would be opened here before the packet itself,
		 * which waits to be joined with others, and all those would be refused with it. */
		if (!(sa->head.sealer & SEALER_SENDS) &&
		    (port & SEALER_PORT_MASK) != SEALER_PORT_BASE)
			return 0;
		reason = sa_admit(sa, bpf_ntohl(job->esp.seq), &job->seq);
		if (reason)
			return reason;
	}
	if (sa)
		say.seq = sa->top;
	/* Merged ones of other ports are a hook's, and those that begin with a key that the sealer
	 * has lost are too: it would refuse all. What another sender has put in front says nothing
	 * of the rest, which the sealer looks at one by one: cut, it would be many packets for it.
	 */
	if ((held || !sa) && (!merged || (port & SEALER_PORT_MASK) == SEALER_PORT_BASE) &&
	    say.seq < SEALER_SEQ_LIMIT && sealer_ask(cfg))
		act = sealer_give(ctx, cfg, &say);
	else if (!merged)
		return 0;
	else
		act = segment_send(ctx, cfg, SEGMENT_OPEN, p->node, 0);
	return act == CTX_REDIRECT ? OPEN_ELSEWHERE : REASON_INTERNAL;
#else
	return 0;
#endif
}

ALWAYS_INLINE int hosts_identity(__u32 node, __u32 identity)
{
	struct weft_peer_id key = {.node = node, .identity = identity};

	return identity == IDENTITY_HOST || identity == IDENTITY_WORLD ||
	       bpf_map_lookup_elem(&weft_peer_ids, &key) != NULL;
}

/* The trailer: padding 1, 2, 3…, its length, the next header. Returns the length of what is before
 * it, or 0. */
ALWAYS_INLINE __u32 open_trailer(weft_ctx *ctx, __u32 at, __u32 len, __u8 *next)
{
	__u8 end[5];
	__u32 pad;

	/* The last bytes of up to three of padding, which is all that alignment needs. */
	if (ctx_load(ctx, at + len - 5, end, 5))
		return 0;
	pad = end[3];
	*next = end[4];
	if (pad + 2 + IP4_LEN > len || (pad >= 1 && end[2] != pad) ||
	    (pad >= 2 && end[1] != pad - 1) || (pad >= 3 && end[0] != pad - 2))
		return 0;
	return len - pad - 2;
}

/* RFC 6040: congestion that the wire reported reaches the inner packet, if that can carry it. */
ALWAYS_INLINE int open_ecn(weft_ctx *ctx, const struct weft_job *o, __u8 inner_family)
{
	struct iphdr *ip4 = ctx_data(ctx) + ETH_LEN;
	struct ipv6hdr *ip6 = ctx_data(ctx) + ETH_LEN;
	__u32 sum;

	if (o->ecn != 3)
		return 0;
	if (inner_family == 6) {
		if ((void *)(ip6 + 1) > ctx_end(ctx) || !(ip6->flow_lbl[0] & 0x30))
			return -1;
		ip6->flow_lbl[0] |= 0x30;
		return 0;
	}
	if ((void *)(ip4 + 1) > ctx_end(ctx) || !(ip4->tos & 3))
		return -1;
	/* RFC 1624 equation 3. */
	sum = (__u16)~ip4->check + (__u16)~bpf_htons(ip4->tos) + (__u16)bpf_htons(ip4->tos | 3);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip4->tos |= 3;
	/* version and ihl are the other half of the word and do not change */
	ip4->check = ~sum;
	return 0;
}

/* All before the cipher: whose packet it says it is, which key that means, whether it is new. Fills
 * p with the outer packet. */
SUBPROGRAM int open_begin(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p)
{
	struct weft_job *job = job_get();
	__u32 spi, *node;
	int reason;

	if (!cfg || !p || !job)
		return OPEN_NOT_ESP;
	ctx_pull(ctx, ETH_LEN + IP6_LEN + UDP_LEN + ESP_HEAD_LEN);
	if (!open_outer(ctx, cfg, p, job))
		return OPEN_NOT_ESP;
	reason = open_esp(ctx, job);
	if (reason)
		return reason;
	node = bpf_map_lookup_elem(&weft_peer_addr, &p->src);
	if (!node)
		return REASON_ESP_UNKNOWN_PEER;
	spi = bpf_ntohl(job->esp.spi);
	p->node = *node;
	p->identity = SPI_IDENTITY(spi);
	job->id = sa_id(p->node, SPI_EPOCH(spi), SPI_LANE(spi));
	return open_elsewhere(ctx, cfg, p, job);
}

/* All after it. The frame then holds the packet that was sealed. Returns a drop reason. */
SUBPROGRAM int open_end(weft_ctx *ctx, const struct weft_pkt *p)
{
	struct weft_job *job = job_get();
	__u8 next, family;
	__u32 len;

	if (!p || !job)
		return REASON_INTERNAL;
	if (!hosts_identity(p->node, p->identity))
		return REASON_IDENTITY_NOT_ON_NODE;
	len = open_trailer(ctx, job->text, job->len, &next);
	if (!len || (next != IPPROTO_IPIP && next != IPPROTO_IPV6))
		return REASON_ESP_PADDING;
	family = next == IPPROTO_IPIP ? 4 : 6;
	if (ctx_strip(ctx, job->text - ETH_LEN, ETH_LEN + len, ethertype_of(job->family),
		      ethertype_of(family)))
		return REASON_INTERNAL;
	return open_ecn(ctx, job, family) ? REASON_ESP_MALFORMED : REASON_NONE;
}

/* The cipher, and around it the window: before, a cheap refusal; after, the packet's number is
 * taken. */
ALWAYS_INLINE int open_text(weft_ctx *ctx, struct weft_crypt *s, struct weft_job *job)
{
	struct weft_sa_in *sa = bpf_map_lookup_elem(&weft_sa_in, &job->id);
	int reason = sa_admit(sa, bpf_ntohl(job->esp.seq), &job->seq);

	if (reason || !sa)
		return reason;
	esp_bind(s, &job->esp, job->seq);
	if (aead_open(ctx, sa, job->text, job->len))
		return REASON_ESP_BAD_TAG;
	return sa_commit(sa, job->seq, 1, job->udp - UDP_LEN);
}

/* Opens an ESP packet: the frame then holds what was sealed, and p->node and p->identity say by
 * whom. Returns OPEN_NOT_ESP for any other packet, OPEN_ELSEWHERE for one that is open_elsewhere's,
 * or a drop reason (p then describes the outer packet). */
ALWAYS_INLINE int open(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p)
{
	struct weft_crypt *s = crypt_get();
	struct weft_job *job = job_get();
	int reason;

	if (!s || !job)
		return REASON_SEAL_FAILED;
	reason = open_begin(ctx, cfg, p);
	if (!reason)
		reason = open_text(ctx, s, job);
	if (!reason)
		reason = open_end(ctx, p);
	crypt_put(s);
	if (reason)
		p->node = 0;
	return reason;
}

#endif
