// SPDX-License-Identifier: GPL-2.0-only
/* from_sealer: what the sealer gives back, on the ingress of weft_sealer. ESP packets get their
 * outer addresses and leave by the uplink; what it has opened passes the window and goes where it
 * would if from_wire had opened it. The process is believed no more than its keys allow: it speaks
 * for SAs whose keys it holds, alive and in their time, with numbers that it was given or that
 * nobody has had. TC only. */
#include "lib/arrive.h"

/* What the process may have put between the Ethernet header and the first ESP packet. */
ALWAYS_INLINE int is_sealed_udp(const struct weft_config *cfg, const struct weft_sealer_say *say,
				const struct weft_udp_esp *u, __u32 room)
{
	__u32 epoch = say->id >> 6 & 15, lane = say->id & 63;

	return u->udp.dest == cfg->esp_port &&
	       (bpf_ntohs(u->udp.source) & SEALER_PORT_MASK) == SEALER_PORT_BASE &&
	       bpf_ntohs(u->udp.len) == room &&
	       u->esp.spi == bpf_htonl(epoch << 28 | lane << 22 | say->identity);
}

/* Whether the device is to write the checksum into UDP's field, and nowhere else: not over what was
 * looked at.
 */
ALWAYS_INLINE int is_sealed_sum(weft_ctx *ctx, __u32 udp)
{
	__u32 start = 0, field = 0;

	if (weft_test_run)
		return 1;
	return skb_unfinished(ctx, &start, &field) > 0 && start == udp && field == udp + 6 &&
	       skb_is_plain_gso(ctx);
}

/* The device, or the kernel for it, sums each packet from what is left in the field: the
 * pseudo-header's sum.
 */
ALWAYS_INLINE void sealed_pseudo(struct weft_udp_esp *u, __u64 sum)
{
	sum += (__u64)bpf_htons(IPPROTO_UDP) + u->udp.len;
	u->udp.check = ~csum_fold(sum);
}

ALWAYS_INLINE int sealed_outer4(weft_ctx *ctx, const struct weft_config *cfg,
				const struct weft_peer *peer, const struct weft_sealer_say *say)
{
	struct {
		struct iphdr ip;
		struct weft_udp_esp udp;
	} __attribute__((packed)) *o = ctx_data(ctx) + ETH_LEN;
	__u32 room = ctx->len - ETH_LEN - IP4_LEN;
	__u64 sum = 0;

	if ((void *)(o + 1) > ctx_end(ctx) || o->ip.version != 4 || o->ip.ihl != 5 ||
	    o->ip.protocol != IPPROTO_UDP || o->ip.frag_off != bpf_htons(0x4000) ||
	    bpf_ntohs(o->ip.tot_len) != room + IP4_LEN || !is_sealed_udp(cfg, say, &o->udp, room))
		return -1;
	o->ip.saddr = peer->local.w[3];
	o->ip.daddr = peer->remote.w[3];
	o->ip.check = 0;
	barrier(); /* csum_words reads words of another type */
	csum_words(&o->ip, ctx_end(ctx), 5, 5, &sum);
	o->ip.check = csum_fold(sum);
	sealed_pseudo(&o->udp, (__u64)o->ip.saddr + o->ip.daddr);
	return 0;
}

ALWAYS_INLINE int sealed_outer6(weft_ctx *ctx, const struct weft_config *cfg,
				const struct weft_peer *peer, const struct weft_sealer_say *say)
{
	struct {
		struct ipv6hdr ip;
		struct weft_udp_esp udp;
	} __attribute__((packed)) *o = ctx_data(ctx) + ETH_LEN;
	__u32 room = ctx->len - ETH_LEN - IP6_LEN;
	__u64 sum = 0;

	if ((void *)(o + 1) > ctx_end(ctx) || o->ip.version != 6 || o->ip.nexthdr != IPPROTO_UDP ||
	    bpf_ntohs(o->ip.payload_len) != room || !is_sealed_udp(cfg, say, &o->udp, room))
		return -1;
	__builtin_memcpy(&o->ip.saddr, &peer->local, 16);
	__builtin_memcpy(&o->ip.daddr, &peer->remote, 16);
	for (int i = 0; i < 4; i++)
		sum += (__u64)peer->local.w[i] + peer->remote.w[i];
	sealed_pseudo(&o->udp, sum);
	return 0;
}

/* What was sealed for a node leaves for it. Returns a drop reason, or REASON_NONE and what to do.
 */
SUBPROGRAM int leave(weft_ctx *ctx, const struct weft_config *cfg, struct weft_sealer_say *say)
{
	struct weft_sa_out *sa;
	const struct weft_peer *peer;
	__u32 id, node, around;
	int reason;

	if (!cfg || !say)
		return REASON_INTERNAL;
	id = say->id;
	node = id >> 10;
	sa = bpf_map_lookup_elem(&weft_sa_out, &id);
	peer = peer_of(node);
	reason = sa_seals(sa);
	if (reason || !sa || !peer)
		return reason ?: REASON_NO_KEY;
	if (sa->head.engine != ENGINE_USER || !say->seq || !say->count ||
	    say->seq + say->count - 1 > sa->counter)
		return REASON_SEAL_FAILED;
	/* A tap keeps no more of a frame linear than its headers, as the process has measured them.
	 */
	ctx_pull(ctx, ETH_LEN + IP6_LEN + UDP_LEN + ESP_HEAD_LEN);
	around = ETH_LEN + (peer->family == 4 ? IP4_LEN : IP6_LEN) + UDP_LEN;
	if (!is_sealed_sum(ctx, around - UDP_LEN - ETH_LEN))
		return REASON_SEAL_FAILED;
	reason = peer->family == 4 ? sealed_outer4(ctx, cfg, peer, say)
				   : sealed_outer6(ctx, cfg, peer, say);
	if (reason)
		return REASON_SEAL_FAILED;
	__sync_fetch_and_add(&sa->head.bytes, ctx->len - around);
	return REASON_NONE;
}

/* Whether what was opened may pass: its SA, its numbers, its sender. Returns a drop reason. */
SUBPROGRAM int admit(weft_ctx *ctx, const struct weft_sealer_say *say)
{
	struct weft_sa_in *sa;
	__u32 id;
	int reason;

	if (!say)
		return REASON_INTERNAL;
	id = say->id;
	sa = bpf_map_lookup_elem(&weft_sa_in, &id);
	reason = sa_opens(sa);
	if (reason || !sa)
		return reason;
	if (!(sa->head.sealer & SEALER_HOLDS))
		return REASON_ESP_UNKNOWN_SA;
	reason = sa_commit(sa, say->seq, say->count, ctx->len - ETH_LEN + say->count * ESP_AROUND);
	if (reason)
		return reason;
	if (!(sa->head.sealer & SEALER_SENDS))
		__sync_fetch_and_or(&sa->head.sealer, SEALER_SENDS);
	return hosts_identity(id >> 10, say->identity) ? REASON_NONE : REASON_IDENTITY_NOT_ON_NODE;
}

ALWAYS_INLINE int reason_of(__u32 refusal)
{
	switch (refusal) {
	case SEALER_NO_KEY:
		return REASON_ESP_UNKNOWN_SA;
	case SEALER_BAD_TAG:
		return REASON_ESP_BAD_TAG;
	case SEALER_REPLAYED:
		return REASON_ESP_REPLAYED;
	case SEALER_SEAL_FAILED:
		return REASON_SEAL_FAILED;
	}
	return REASON_ESP_MALFORMED;
}

/* ESP packets leave by the uplink. */
ALWAYS_INLINE int from_sealer_out(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
				  struct weft_sealer_say *say)
{
	int reason, act;

	p->direction = DIR_EGRESS;
	reason = leave(ctx, cfg, say);
	if (reason)
		return drop(cfg, p, reason);
	act = send_sealed(ctx, say->id >> 10);
	return act == CTX_DROP ? drop(cfg, p, REASON_NO_NEXT_HOP) : act;
}

/* What was opened goes on as if from_wire had opened it. What is the stack's reaches it by the
 * uplink, as the sender's address, the host's firewall and rp_filter expect. */
ALWAYS_INLINE int from_sealer_in(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
				 struct weft_sealer_say *say)
{
	const struct weft_nexthop *next;
	int reason, act;

	p->node = say->id >> 10;
	p->identity = say->identity;
	next = tunnel_hop(peer_of(p->node), p->node);
	if (!next)
		return drop(cfg, p, REASON_NO_NEXT_HOP);
	reason = admit(ctx, say);
	if (reason)
		return drop(cfg, p, reason);
	act = arrive(ctx, cfg, p, next->ifindex);
	if (act != CTX_PASS)
		return act;
	ctx->mark = SEALER_MARK | ctx->tc_index;
	act = to_uplink_ingress(ctx, p->node);
	return act == CTX_DROP ? drop(cfg, p, REASON_NO_NEXT_HOP) : act;
}

SEC(WEFT_SEC)
int weft_from_sealer(weft_ctx *ctx)
{
	const struct weft_config *cfg = config();
	struct weft_said *said = sealer_said();
	struct weft_sealer_say *say;
	struct weft_pkt *p;

	if (!cfg || !said || !weft_sealing)
		return CTX_DROP;
	tag_clear(ctx);
	sealer_answered();
	say = &said->say;
	p = &said->pkt;
	__builtin_memset(p, 0, sizeof(*p));
	p->hook = HOOK_FROM_SEALER;
	p->direction = DIR_INGRESS;
	p->len = ctx->len;
	if (sealer_read(ctx, say))
		return drop(cfg, p, REASON_TRUNCATED);
	p->packets = say->count ?: 1;
	if (say->kind == SEALER_REFUSED) {
		share_answered(say->id, say->seq);
		return drop(cfg, p, reason_of(say->identity));
	}
	if (say->kind == SEALER_SEALED) {
		share_answered(say->id, say->seq + say->count - 1);
		return from_sealer_out(ctx, cfg, p, say);
	}
	if (say->kind != SEALER_OPENED)
		return drop(cfg, p, REASON_INTERNAL);
	return from_sealer_in(ctx, cfg, p, say);
}

char _license[] SEC("license") = "GPL";
