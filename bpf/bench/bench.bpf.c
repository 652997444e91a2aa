// SPDX-License-Identifier: GPL-2.0-only
/*
 * Load generator and sink of `weft bench`: not part of the datapath.
 *
 * bench_gen is run by BPF_PROG_RUN with BPF_F_TEST_XDP_LIVE_FRAMES inside a pod's
 * network namespace; every run of it sends one frame out of the pod's own end.
 * bench_sink sits on the far end of the wire, counts those frames and drops them.
 * bench_forward is the least that an XDP forwarder does, the bound for any other.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define HDR_LEN	   (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define SAMPLE_LEN 64
#define BENCH_PORT 20009

/* Ethernet, IPv4 and UDP header as one block, padded so that it copies as words. */
struct header {
	__u64 word[5];
	__u16 rest;
};

_Static_assert(HDR_LEN == 42, "the template is Ethernet, IPv4 without options, UDP");

/* Set before loading. flow_mask is a power of two minus one. */
const volatile struct header tmpl;
const volatile __u32 out_ifindex;
const volatile __u16 flow_mask;
const volatile __u16 first_sport;

/* If dst_count is not 0, so many destinations take turns, each dst_step after the other. dst_rest
 * is the sum of the IPv4 header's 16-bit words as they lie in memory, but for its checksum and
 * destination. */
const volatile __u32 dst_count, dst_first, dst_step, dst_rest;

/* Destination port of the frames that the sink counts. */
const volatile __u16 sink_port = BENCH_PORT;

/* bench_forward's way out: interface, and destination and source MAC of the frame. */
const volatile __u32 forward_ifindex;
const volatile __u8 forward_macs[12];

/* Frames sent. One thread pinned to one CPU runs the generator: no atomics. */
__u64 sent;

/* The destination whose turn it is. */
__u32 dst_next;

/* The first frame that the sink saw, for the bench to check what was forwarded. */
__u8 sample[SAMPLE_LEN];
__u32 sampled;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} counted SEC(".maps");

/* Writes the next destination. */
static __always_inline void next_destination(struct iphdr *ip)
{
	__be32 dst = bpf_htonl(dst_first + dst_next * dst_step);
	__u32 sum = dst_rest + (dst & 0xffff) + (dst >> 16);

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->daddr = dst;
	ip->check = ~sum;
	if (++dst_next >= dst_count)
		dst_next = 0;
}

SEC("xdp")
int bench_gen(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u64 *word = data;
	__u16 *rest = data + 40;
	__be16 *sport = data + 34;

	if (data + HDR_LEN > end)
		return XDP_ABORTED;
	/* Pages are recycled and the measured datapath rewrote them: the whole header, each time.
	 */
	word[0] = tmpl.word[0];
	word[1] = tmpl.word[1];
	word[2] = tmpl.word[2];
	word[3] = tmpl.word[3];
	word[4] = tmpl.word[4];
	*rest = tmpl.rest;
	if (flow_mask)
		*sport = bpf_htons(first_sport + (sent & flow_mask));
	if (dst_count)
		next_destination(data + sizeof(struct ethhdr));
	sent++;
	return bpf_redirect(out_ifindex, 0);
}

/* Whether the frame is one of the generator's; then it is counted. */
static __always_inline int take(void *data, void *end)
{
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	struct udphdr *udp = data + sizeof(*eth) + sizeof(*ip);
	__u32 zero = 0;
	__u64 *count;

	if ((void *)(udp + 1) > end)
		return 0;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP ||
	    udp->dest != bpf_htons(sink_port))
		return 0;
	count = bpf_map_lookup_elem(&counted, &zero);
	if (!count)
		return 0;
	(*count)++;
	if (!sampled && data + SAMPLE_LEN <= end) {
		__builtin_memcpy(sample, data, SAMPLE_LEN);
		sampled = 1;
	}
	return 1;
}

SEC("xdp")
int bench_sink(struct xdp_md *ctx)
{
	return take((void *)(long)ctx->data, (void *)(long)ctx->data_end) ? XDP_DROP : XDP_PASS;
}

/* For pods whose node hands them socket buffers past the XDP program on their interface. */
SEC("tc")
int bench_sink_skb(struct __sk_buff *ctx)
{
	bpf_skb_pull_data(ctx, SAMPLE_LEN);
	return take((void *)(long)ctx->data, (void *)(long)ctx->data_end) ? TC_ACT_SHOT : TC_ACT_OK;
}

SEC("xdp")
int bench_forward(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = data + sizeof(*eth);
	__u32 check;

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_UDP || ip->ttl <= 1)
		return XDP_PASS;
	for (int i = 0; i < 12; i++)
		((__u8 *)data)[i] = forward_macs[i];
	ip->ttl--;
	/* RFC 1624: the TTL is the high byte of its 16-bit word. */
	check = ip->check + bpf_htons(0x0100);
	ip->check = check + (check >= 0xffff);
	return bpf_redirect(forward_ifindex, 0);
}

char LICENSE[] SEC("license") = "GPL";
