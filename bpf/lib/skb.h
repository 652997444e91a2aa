/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_SKB_H
#define WEFT_SKB_H

#include <bpf/bpf_core_read.h>
#include "kfuncs.h"
#include "headers.h"

/* What the helpers do not tell about an skb, read from the kernel's own structure, and what they do
 * not do by themselves: leave the transport's checksum no longer to the device. */

#ifdef WEFT_XDP

ALWAYS_INLINE int skb_reframe(weft_ctx *ctx, __u32 len, __be16 from, __be16 to)
{
	return bpf_xdp_adjust_head(ctx, -(int)(len - ctx_len(ctx)));
}

ALWAYS_INLINE int skb_overwrites(weft_ctx *ctx, const struct weft_pkt *p) { return 0; }

ALWAYS_INLINE int skb_answers(weft_ctx *ctx) { return 0; }

#else

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} __attribute__((preserve_access_index)) possible_net_t;

struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));

struct net_device {
	int ifindex;
	void *rx_handler;
} __attribute__((preserve_access_index));

struct dst_entry {
	struct net_device *dev;
} __attribute__((preserve_access_index));

struct skb_shared_info {
	unsigned int gso_type;
} __attribute__((preserve_access_index));

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned long _skb_refdst;
	unsigned long _nfct;
	int skb_iif;
	unsigned int len, data_len;
	__u16 tc_index;
	__u8 ip_summed : 2;
	__u8 csum_not_inet : 1;
	__u16 csum_start, csum_offset; /* from head; from there */
	unsigned int tail, end;	       /* from head */
	unsigned char *head, *data;
} __attribute__((preserve_access_index));

/* include/uapi/linux/netfilter/nf_conntrack_common.h: enum ip_conntrack_info, the low bits of
 * _nfct. Without connection tracking they are 0. */
#define CT_MASK		     7
#define CT_RELATED	     1
#define CT_NEW		     2
#define CT_ESTABLISHED_REPLY 3
#define CT_RELATED_REPLY     4

/* include/linux/skbuff.h: CHECKSUM_PARTIAL, SKB_DST_NOREF */
#define IP_SUMMED_PARTIAL    3
#define DST_NOREF	     1UL

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/* Set by tests alone, for packets as this host's stack sends them: BPF_PROG_TEST_RUN gives its own
 * a socket without an address family, and no route. */
const volatile __u8 weft_test_run = 0;

/* Whether this host's stack has routed the packet to the interface that it is leaving by. What an
 * interface on top of that one (macvlan, ipvlan, macvtap) hands over has no route, or one of
 * another network namespace, to another interface: hence pointers, not indexes, which each
 * namespace counts for itself. Egress hooks only: the kernel drops the route behind them. */
ALWAYS_INLINE int skb_is_routed(weft_ctx *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct dst_entry *dst = (void *)(skb->_skb_refdst & ~DST_NOREF);

	if (weft_test_run)
		return 1;
	return dst && BPF_CORE_READ(dst, dev) == BPF_CORE_READ(skb, dev);
}

/* Whether a packet that came in by no interface is this host's. Interfaces on top of the uplink
 * (macvlan, ipvlan, macvtap) hand over what another network namespace or a virtual machine sends
 * just so, but with a socket of that namespace, or of no address family. What the kernel sends by
 * itself may have no socket. */
ALWAYS_INLINE int skb_is_hosts(weft_ctx *ctx, const struct weft_config *cfg)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct sock *sk = skb->sk;

	if (!sk)
		return 1;
	return (weft_test_run || BPF_CORE_READ(sk, __sk_common.skc_family)) &&
	       BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum) == cfg->netns;
}

/* Whether a packet that this host sends by itself may be one that an ipvlan in mode l3 or l3s has
 * had it route: there is no socket to tell, and something is on top of the uplink that takes frames
 * from it (also a macvlan, which the kernel does not tell apart for us). Some of the kernel's own
 * packets have none either, such as TCP resets of its filter. */
ALWAYS_INLINE int skb_may_be_ipvlans(weft_ctx *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);

	return !skb->sk && BPF_CORE_READ(skb, dev, rx_handler);
}

/* What connection tracking says of a packet: enum ip_conntrack_info, or CT_MASK, which is none of
 * them, in a kernel without it. */
ALWAYS_INLINE __u32 tracked_as(const struct sk_buff *skb)
{
	return bpf_core_field_exists(skb->_nfct) ? skb->_nfct & CT_MASK : CT_MASK;
}

/* Whether that is of a packet, or an error, that answers another. Connection tracking knows nothing
 * of a conversation whose packets all were dropped before its last hook: post_routing comes before
 * that. */
ALWAYS_INLINE int is_answer(__u32 tracked)
{
	return tracked == CT_ESTABLISHED_REPLY || tracked == CT_RELATED_REPLY;
}

ALWAYS_INLINE int skb_answers(weft_ctx *ctx)
{
	return is_answer(weft_test_run ? ctx->cb[0] : tracked_as(bpf_cast_to_kern_ctx(ctx)));
}

#define SUM_START_MAX 256 /* a bound for the verifier: headers before the transport's, bytes */

/* Whether the device is to finish the packet's checksum, and where: offsets from the IP header.
 * Returns -1 if it is one that only the kernel can: SCTP's, or one with odd bounds, which packet
 * sockets may ask for. */
ALWAYS_INLINE int skb_unfinished(weft_ctx *ctx, __u32 *start, __u32 *field)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);

	if (BPF_CORE_READ_BITFIELD(skb, ip_summed) != IP_SUMMED_PARTIAL)
		return 0;
	*start = skb->csum_start - (__u32)(skb->data - skb->head) - ETH_LEN;
	*field = *start + skb->csum_offset;
	/* Not in kernels without SCTP. */
	if (bpf_core_field_exists(skb->csum_not_inet) && BPF_CORE_READ_BITFIELD(skb, csum_not_inet))
		return -1;
	if (*start > SUM_START_MAX || *field > 2 * SUM_START_MAX)
		return -1;
	return 1;
}

/* Whether the checksum that the device is to write goes where this hook has already looked: packet
 * sockets may ask for any place, and so for another source address or port after the check. XDP
 * does not see that, and an XDP redirect forgets it; what XDP passes to the stack still has it, so
 * the hooks behind the stack look too.
 */
ALWAYS_INLINE int skb_overwrites(weft_ctx *ctx, const struct weft_pkt *p)
{
	__u32 start, field, l4 = p->l4 - ETH_LEN, at = 2, header = 8;

	if (!skb_unfinished(ctx, &start, &field) || !p->family)
		return 0;
	if (p->proto == IPPROTO_TCP) {
		at = 16;
		header = 20;
	} else if (p->proto == IPPROTO_UDP) {
		at = 6;
	}
	return start < l4 || (field != l4 + at && field < l4 + header);
}

/* include/linux/skbuff.h: SKB_GSO_TCPV4, _DODGY, _TCP_ECN, _TCPV6, _UDP_L4 */
#define GSO_PLAIN     (1 << 0 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 17)
#define GSO_TCP	      (1 << 0 | 1 << 4)

/* Whether a GSO packet is TCP or UDP as a socket makes it: in no tunnel, not a list of packets, and
 * with IP IDs that count up. */
ALWAYS_INLINE int skb_is_plain_gso(weft_ctx *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct skb_shared_info *shared = (void *)(skb->head + skb->end);

	return !(BPF_CORE_READ(shared, gso_type) & ~GSO_PLAIN);
}

/* Whether a GSO packet is TCP. */
ALWAYS_INLINE int skb_is_tcp_gso(weft_ctx *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct skb_shared_info *shared = (void *)(skb->head + skb->end);

	return !!(BPF_CORE_READ(shared, gso_type) & GSO_TCP);
}

/* How many bytes can be put behind the packet in its memory. */
ALWAYS_INLINE __u32 skb_tailroom(weft_ctx *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);

	return skb->data_len ? 0 : skb->end - skb->tail;
}

/* Makes the frame one of len bytes, all of which the caller writes, and its checksum nobody's
 * business. The kernel drops the mark of an unfinished checksum when the bytes from where that is
 * computed are taken away (skb_postpull_rcsum), so n bytes at the front are; the frame grows again
 * behind them if the memory has room there, else before them. */
ALWAYS_INLINE int skb_reframe(weft_ctx *ctx, __u32 len, __be16 from, __be16 to)
{
	__u64 flags =
	    to == bpf_htons(ETH_P_IP) ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4 : BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	__u32 start = 0, field, n = from == to ? 0 : 4, least;

	/* What lies behind the IP packet is not sealed, so it does not leave. */
	if (ctx->len > len && bpf_skb_change_tail(ctx, len, 0))
		return -1;
	if (skb_unfinished(ctx, &start, &field))
		n = ETH_LEN + start + 2;
	least = n + ETH_LEN + IP6_LEN;
	if (skb_tailroom(ctx) >= len + n - ctx->len)
		least = len + n;
	if (ctx->len < least && bpf_skb_change_tail(ctx, least, 0))
		return -1;
	if (n && bpf_skb_adjust_room(ctx, -(int)n, BPF_ADJ_ROOM_MAC, flags))
		return -1;
	if (ctx->len < len && bpf_skb_change_head(ctx, len - ctx->len, 0))
		return -1;
	return ctx->len != len || skb_unfinished(ctx, &start, &field);
}

#endif

#endif
