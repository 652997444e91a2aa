/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_SEAL_H
#define WEFT_SEAL_H

#include "esp.h"

/* Sealing: the frame is read whole, its new headers are put where room was opened in front of
 * it, and the sealed text is written behind them. All of the growth is at the front, trailer and
 * ICV too: a native XDP frame of a veth has next to no room behind it (0 to 63 bytes), but 256 in
 * front. */

/* Mixes what tells flows apart, so that the wire's hashing spreads them. Fragments have no ports.
 */
ALWAYS_INLINE __u32 flow_hash(const __be32 *w, __u32 family)
{
	__u32 h;

	if (family == 4) {
		h = w[3] ^ (w[4] * 0x9e3779b1);
		if (!(w[1] & bpf_htonl(0x3fff)) && (bpf_ntohl(w[0]) >> 24 & 0xf) == 5)
			h ^= w[5] * 0x85ebca6b;
	} else {
		h = w[2] ^ w[3] ^ w[4] ^ w[5] ^ (w[6] ^ w[7] ^ w[8] ^ w[9]) * 0x9e3779b1;
		if ((bpf_ntohl(w[1]) >> 8 & 0xff) != IPPROTO_FRAGMENT)
			h ^= w[10] * 0x85ebca6b;
	}
	h ^= h >> 15;
	h *= 0x2c1b3c6d;
	return h ^ h >> 13;
}

/* The DSCP and ECN bits of the inner packet, which the outer one repeats (RFC 4301
 * section 5.1.2.1). */
ALWAYS_INLINE __u8 traffic_class(const __u8 *ip, __u32 family)
{
	return family == 4 ? ip[1] : (ip[0] << 4 | ip[1] >> 4);
}

struct weft_seal {
	struct weft_esp esp;
	__u32 hash;
	__u16 payload; /* of UDP, bytes */
	__u8 tos;
};

/* What follows the outer IP header. */
struct weft_udp_esp {
	struct udphdr udp;
	struct weft_esp esp;
} __attribute__((packed));

ALWAYS_INLINE void seal_udp(struct weft_udp_esp *o, const struct weft_seal *w, __be16 port)
{
	o->udp.source = bpf_htons(ESP_PORT_BASE | (w->hash & 0x3fff));
	o->udp.dest = port;
	o->udp.len = bpf_htons(UDP_LEN + w->payload);
	o->udp.check =
	    0; /* RFC 3948 section 2.1: the ICV protects more; for IPv6 see outer_checksum6 */
	o->esp = w->esp;
}

ALWAYS_INLINE int seal_outer4(weft_ctx *ctx, const struct weft_peer *peer,
			      const struct weft_seal *w, __be16 port)
{
	struct {
		struct iphdr ip;
		struct weft_udp_esp udp;
	} __attribute__((packed)) *o = ctx_data(ctx) + ETH_LEN;
	__u64 sum = 0;

	if ((void *)(o + 1) > ctx_end(ctx))
		return -1;
	__builtin_memset(&o->ip, 0, sizeof(o->ip));
	o->ip.version = 4;
	o->ip.ihl = 5;
	o->ip.tos = w->tos;
	o->ip.tot_len = bpf_htons(IP4_LEN + UDP_LEN + w->payload);
	o->ip.frag_off = bpf_htons(0x4000);
	o->ip.ttl = 64;
	o->ip.protocol = IPPROTO_UDP;
	o->ip.saddr = peer->local.w[3];
	o->ip.daddr = peer->remote.w[3];
	csum_words(&o->ip, ctx_end(ctx), 5, 5, &sum);
	o->ip.check = csum_fold(sum);
	seal_udp(&o->udp, w, port);
	return 0;
}

ALWAYS_INLINE int seal_outer6(weft_ctx *ctx, const struct weft_peer *peer,
			      const struct weft_seal *w, __be16 port)
{
	struct {
		struct ipv6hdr ip;
		struct weft_udp_esp udp;
	} __attribute__((packed)) *o = ctx_data(ctx) + ETH_LEN;
	__be32 *first = (void *)o;

	if ((void *)(o + 1) > ctx_end(ctx))
		return -1;
	*first = bpf_htonl(6u << 28 | w->tos << 20 | (w->hash & 0xfffff));
	o->ip.payload_len = bpf_htons(UDP_LEN + w->payload);
	o->ip.nexthdr = IPPROTO_UDP;
	o->ip.hop_limit = 64;
	__builtin_memcpy(&o->ip.saddr, &peer->local, 16);
	__builtin_memcpy(&o->ip.daddr, &peer->remote, 16);
	seal_udp(&o->udp, w, port);
	return 0;
}

struct weft_sum_state {
	weft_ctx *ctx;
	struct weft_crypt *s;
	__u32 at, end;
	__s64 sum;
};

static long step_sum(__u32 i, void *state)
{
	struct weft_sum_state *t = state;
	__u32 n = t->end - t->at;

	if (n > SUM_CHUNK)
		n = SUM_CHUNK;
	n &= ~3u;
	if (outside(n, 4, SUM_CHUNK) || ctx_load(t->ctx, t->at, t->s->text, n))
		return 1;
	t->sum = bpf_csum_diff(NULL, 0, (__be32 *)t->s->text, n, t->sum);
	t->at += n;
	return t->sum < 0;
}

/* IPv6 wants a checksum (RFC 8200 section 8.1), and Linux's ESP drops what comes without. */
SUBPROGRAM int outer_checksum6(weft_ctx *ctx, __u32 len)
{
	struct weft_crypt *s = crypt_buffer();
	struct weft_sum_state t = {.ctx = ctx, .s = s, .at = ETH_LEN + 8, .end = len};
	__u16 sum;

	if (!s || len < ETH_LEN + IP6_LEN + UDP_LEN)
		return -1;
	/* The pseudo-header: both addresses are summed with the rest; length and protocol are added
	 * here. */
	t.sum = bpf_htonl(len - ETH_LEN - IP6_LEN) + (__u64)bpf_htonl(IPPROTO_UDP);
	t.sum = (t.sum & 0xffffffff) + (t.sum >> 32);
	bpf_loop(MAX_TEXT / SUM_CHUNK + 2, step_sum, &t, 0);
	if (t.at != t.end)
		return -1;
	sum = csum_fold(t.sum);
	if (!sum)
		sum = 0xffff;
	return ctx_store(ctx, ETH_LEN + IP6_LEN + 6, &sum, 2);
}

#ifdef WEFT_XDP
/* What comes as an XDP frame is complete. */
ALWAYS_INLINE int inner_checksum(weft_ctx *ctx, __u32 len) { return 0; }
#else
static long step_finish(__u32 i, void *state)
{
	struct weft_sum_state *t = state;
	__u32 n = t->end - t->at, at = t->at;

	if (at >= t->end)
		return 1;
	if (n > SUM_CHUNK)
		n = SUM_CHUNK;
	n = (n + 3) & ~3u;
	if (outside(n, 4, SUM_CHUNK) || at > MAX_TEXT)
		return 1;
	t->sum = bpf_csum_diff(NULL, 0, (__be32 *)(t->s->text + at), n, t->sum);
	t->at += n;
	return t->sum < 0;
}

/* Does what the device was to do: the packet is in the text buffer, with the pseudo-header's sum in
 * the field.
 */
SUBPROGRAM int inner_checksum(weft_ctx *ctx, __u32 len)
{
	struct weft_crypt *s = crypt_buffer();
	struct weft_sum_state t = {.s = s, .end = len};
	__u32 start, field;
	int unfinished;
	__u16 sum;

	if (!s)
		return -1;
	unfinished = skb_unfinished(ctx, &start, &field);
	if (unfinished <= 0)
		return unfinished;
	if (len > MAX_TEXT - 8 || field > MAX_TEXT - 8 || field + 2 > len)
		return -1;
	*(__u32 *)(s->text + len) = 0;
	t.at = start;
	bpf_loop(MAX_TEXT / SUM_CHUNK + 2, step_finish, &t, 0);
	if (t.at < len)
		return -1;
	sum = csum_fold(t.sum);
	*(__u16 *)(s->text + field) = sum ?: 0xffff;
	return 0;
}
#endif

/* Reads the packet into the text buffer and appends the ESP trailer. Returns the text's length, 0
 * if it cannot be. */
ALWAYS_INLINE __u32 seal_text(weft_ctx *ctx, struct weft_crypt *s, __u32 family)
{
	struct iphdr *ip4 = ctx_data(ctx) + ETH_LEN;
	struct ipv6hdr *ip6 = ctx_data(ctx) + ETH_LEN;
	__u32 len, pad;

	if (family == 4) {
		if ((void *)(ip4 + 1) > ctx_end(ctx))
			return 0;
		len = bpf_ntohs(ip4->tot_len);
	} else {
		if ((void *)(ip6 + 1) > ctx_end(ctx))
			return 0;
		len = IP6_LEN + bpf_ntohs(ip6->payload_len);
	}
	if (outside(len, IP4_LEN, MAX_TEXT - 8) || ctx_load(ctx, ETH_LEN, s->text, len) ||
	    inner_checksum(ctx, len))
		return 0;
	pad = -(len + 2) & 3;
	if (len > MAX_TEXT - 8)
		return 0;
	/* Padding is 1, 2, 3 (RFC 4303 section 2.4). */
	s->text[len] = pad ? 1 : 0;
	s->text[len + 1] = pad == 1 ? 1 : 2;
	s->text[len + 2] = pad == 2 ? 2 : 3;
	s->text[len + 3] = 3;
	len += pad;
	forget(len);
	if (len > MAX_TEXT - 4)
		return 0;
	s->text[len] = pad;
	s->text[len + 1] = family == 4 ? IPPROTO_IPIP : IPPROTO_IPV6;
	return len + 2;
}

/* Opens the room and writes the outer headers. Returns a drop reason. */
ALWAYS_INLINE int seal_frame(weft_ctx *ctx, const struct weft_config *cfg,
			     const struct weft_peer *peer, struct weft_crypt *s,
			     struct weft_job *job, __u32 inner_family)
{
	__be16 from = ethertype_of(inner_family), to = ethertype_of(peer->family);
	struct weft_seal w = {.payload = ESP_HEAD_LEN + job->len + ESP_ICV_LEN};

	job->text = ETH_LEN + outer_len(peer->family);
	job->family = peer->family;
	job->esp.seq = bpf_htonl((__u32)job->seq);
	job->esp.iv = bpf_cpu_to_be64(job->seq);
	esp_bind(s, &job->esp, job->seq);
	w.hash = flow_hash((void *)s->text, inner_family);
	w.tos = traffic_class(s->text, inner_family);
	w.esp = job->esp;
	if (skb_reframe(ctx, job->text + job->len + ESP_ICV_LEN, from, to))
		return REASON_SEAL_FAILED;
	if (peer->family == 4)
		return seal_outer4(ctx, peer, &w, cfg->esp_port) ? REASON_SEAL_FAILED : REASON_NONE;
	return seal_outer6(ctx, peer, &w, cfg->esp_port) ? REASON_SEAL_FAILED : REASON_NONE;
}

/* All before the cipher but the key. Returns a drop reason. */
SUBPROGRAM int seal_begin(weft_ctx *ctx, const struct weft_config *cfg, __u32 node)
{
	const struct weft_peer *peer = peer_of(node);
	struct ethhdr *eth = ctx_data(ctx);
	struct weft_crypt *s = crypt_buffer();
	struct weft_job *job = job_get();
	__u32 family;

	if (!cfg || !peer || !s || !job)
		return REASON_INTERNAL;
	if ((void *)(eth + 1) > ctx_end(ctx))
		return REASON_TRUNCATED;
	family = eth->h_proto == bpf_htons(ETH_P_IP) ? 4 : 6;
	job->len = seal_text(ctx, s, family);
	if (!job->len)
		return REASON_SEAL_FAILED;
	return seal_frame(ctx, cfg, peer, s, job, family);
}

/* Finds the key, takes a number of it, and seals. */
ALWAYS_INLINE int seal_with(weft_ctx *ctx, const struct weft_config *cfg, __u32 node,
			    __u32 identity, struct weft_job *job)
{
	const struct weft_peer *peer = peer_of(node);
	struct weft_sa_out *sa;
	__u32 epoch, lane;
	int reason;

	if (!peer || !peer->epoch)
		return REASON_NO_KEY;
	epoch = peer->epoch;
	lane = sa_lane(peer);
	job->id = sa_id(node, epoch, lane);
	job->esp.spi = bpf_htonl(epoch << 28 | lane << 22 | identity);
	sa = bpf_map_lookup_elem(&weft_sa_out, &job->id);
	reason = sa_take(sa, 1, &job->seq);
	if (!reason)
		reason = seal_begin(ctx, cfg, node);
	if (reason || !sa)
		return reason;
	if (aead_seal(ctx, sa, job->text, job->len))
		return REASON_SEAL_FAILED;
	if (job->family == 6 && outer_checksum6(ctx, job->text + job->len + ESP_ICV_LEN))
		return REASON_SEAL_FAILED;
	return REASON_NONE;
}

/* Seals the packet of the frame for a node. Returns a drop reason; the frame is then in no state to
 * be sent. */
ALWAYS_INLINE int seal(weft_ctx *ctx, const struct weft_config *cfg, __u32 node, __u32 identity)
{
	struct weft_crypt *s = crypt_get();
	struct weft_job *job = job_get();
	int reason;

	if (!s || !job)
		return REASON_SEAL_FAILED;
	reason = seal_with(ctx, cfg, node, identity, job);
	crypt_put(s);
	return reason;
}

#endif
