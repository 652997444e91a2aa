// SPDX-License-Identifier: GPL-2.0-only
/* sealer_gro: makes GRO merge what other nodes' sealers send to this one's. The kernel merges
 * datagrams before TC sees them only where it finds a socket that asks for it (UDP_GRO), and it
 * asks this program which socket that is; no datagram reaches the socket, since from_wire takes
 * them first. Other ESP is not merged: hooks open one packet at a time. Neither pinned nor shared:
 * it goes with the agent, and then packets come one by one. */
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "lib/sealer_structs.h"

char _license[] SEC("license") = "GPL";

#define AF_INET 2

/* Set by the loader: the port of ESP in host byte order, and this node's addresses as they are in a
 * packet. */
const volatile __u32 weft_port = 0;
const volatile __be32 weft_ip4 = 0;
const volatile __be32 weft_ip6[4] = {};

/* The sockets that ask for merging: 0 of IPv4, 1 of IPv6. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} weft_mergers SEC(".maps");

static __always_inline int is_to_node(struct bpf_sk_lookup *ctx)
{
	if (ctx->family == AF_INET)
		return ctx->local_ip4 == weft_ip4;
	return ctx->local_ip6[0] == weft_ip6[0] && ctx->local_ip6[1] == weft_ip6[1] &&
	       ctx->local_ip6[2] == weft_ip6[2] && ctx->local_ip6[3] == weft_ip6[3];
}

SEC("sk_lookup")
int weft_sealer_gro(struct bpf_sk_lookup *ctx)
{
	__u32 key = ctx->family == AF_INET ? 0 : 1;
	struct bpf_sock *sk;

	if (ctx->protocol != IPPROTO_UDP || ctx->local_port != weft_port ||
	    (bpf_ntohs(ctx->remote_port) & SEALER_PORT_MASK) != SEALER_PORT_BASE ||
	    !is_to_node(ctx))
		return SK_PASS;
	sk = bpf_map_lookup_elem(&weft_mergers, &key);
	if (!sk)
		return SK_PASS;
	bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return SK_PASS;
}
