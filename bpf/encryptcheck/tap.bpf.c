// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tap of `weft encrypt verify`: not part of the datapath.
 *
 * What a program in native XDP takes from an interface, or sends out of one, passes no packet
 * socket. These two are attached to such a program while a verification runs, and copy its frames:
 * those that it receives before it runs, those that it sends after it has decided. Which interface
 * is an uplink the reader knows.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

char _license[] SEC("license") = "GPL";

#define TAP_BUFFER (16 << 20)
#define TAP_DATA   2048 /* bytes of a frame that are kept */

struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

struct xdp_rxq_info {
	struct net_device *dev;
} __attribute__((preserve_access_index));

struct xdp_buff {
	void *data, *data_end;
	struct xdp_rxq_info *rxq;
} __attribute__((preserve_access_index));

struct bpf_redirect_info {
	__u64 tgt_index;
} __attribute__((preserve_access_index));

struct bpf_net_context {
	struct bpf_redirect_info ri;
} __attribute__((preserve_access_index));

struct task_struct {
	struct bpf_net_context *bpf_net_context;
} __attribute__((preserve_access_index));

/* Its mirror is tapRecord in internal/encryptcheck/xdptap.go. */
struct tap_record {
	__u32 length; /* the frame's, which may be more than data has */
	__u32 ifindex;
	__u32 outgoing;
	__u8 data[TAP_DATA];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, TAP_BUFFER);
} weft_tap_frames SEC(".maps");

/* How many frames did not fit into the ring. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} weft_tap_lost SEC(".maps");

static __always_inline int copy_frame(struct xdp_buff *xdp, __u32 ifindex, __u32 outgoing)
{
	__u64 length = (__u64)xdp->data_end - (__u64)xdp->data;
	struct tap_record *r = bpf_ringbuf_reserve(&weft_tap_frames, sizeof(*r), 0);
	__u32 zero = 0;
	__u64 *lost;

	if (!r) {
		lost = bpf_map_lookup_elem(&weft_tap_lost, &zero);
		if (lost)
			__sync_fetch_and_add(lost, 1);
		return 0;
	}
	r->length = length;
	r->ifindex = ifindex;
	r->outgoing = outgoing;
	if (length > TAP_DATA)
		length = TAP_DATA;
	bpf_probe_read_kernel(r->data, length, xdp->data);
	bpf_ringbuf_submit(r, 0);
	return 0;
}

SEC("fentry")
int BPF_PROG(weft_tap_received, struct xdp_buff *xdp)
{
	__u32 ifindex = xdp->rxq->dev->ifindex;

	return copy_frame(xdp, ifindex, 0);
}

SEC("fexit")
int BPF_PROG(weft_tap_sent, struct xdp_buff *xdp, int verdict)
{
	struct bpf_net_context *net;

	if (verdict == XDP_TX)
		return copy_frame(xdp, xdp->rxq->dev->ifindex, 1);
	if (verdict != XDP_REDIRECT)
		return 0;
	net = ((struct task_struct *)bpf_get_current_task_btf())->bpf_net_context;
	return net ? copy_frame(xdp, net->ri.tgt_index, 1) : 0;
}
