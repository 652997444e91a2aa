// SPDX-License-Identifier: GPL-2.0-only
/* On the TCP socket that listens for exchanges of keys: drops what comes from an address that no
 * other node has, before the kernel answers it or remembers anything of it. It fails closed: an
 * empty map lets nobody in. Neither pinned nor shared: it goes with the agent, and so does the
 * socket. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "lib/flow_structs.h"

char _license[] SEC("license") = "GPL";

#define PASS 0xffffffff /* all of the packet, however long */
#define DROP 0

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * WEFT_MAX_NODES);
	__type(key, union weft_addr);
	__type(value, __u8);
} weft_allowed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_source_filter);
} weft_refused SEC(".maps");

/* Reads by the packet's own header, since an IPv6 socket has IPv4 connections too. */
static __always_inline int source_of(struct __sk_buff *skb, union weft_addr *src)
{
	__u8 version;

	if (bpf_skb_load_bytes_relative(skb, 0, &version, sizeof(version), BPF_HDR_START_NET))
		return -1;
	switch (version >> 4) {
	case 4:
		src->w[2] = bpf_htonl(0xffff);
		return bpf_skb_load_bytes_relative(skb, 12, &src->w[3], sizeof(src->w[3]),
						   BPF_HDR_START_NET);
	case 6:
		return bpf_skb_load_bytes_relative(skb, 8, src, sizeof(*src), BPF_HDR_START_NET);
	}
	return -1;
}

static __always_inline int refuse(const union weft_addr *src)
{
	__u32 zero = 0;
	struct weft_source_filter *count = bpf_map_lookup_elem(&weft_refused, &zero);

	if (count) {
		count->packets++;
		count->last_ns = bpf_ktime_get_ns();
		count->last = *src;
	}
	return DROP;
}

SEC("socket")
int weft_source_filter(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	union weft_addr src = {};

	/* A connection inherits the filter of the socket that listened. It was let in; a peer that
	 * is removed meanwhile must not leave this end waiting for it. */
	if (!sk || sk->state != BPF_TCP_LISTEN)
		return PASS;
	if (source_of(skb, &src) || !bpf_map_lookup_elem(&weft_allowed, &src))
		return refuse(&src);
	return PASS;
}
