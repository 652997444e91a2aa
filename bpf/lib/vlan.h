/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_VLAN_H
#define WEFT_VLAN_H

#include "headers.h"

/* VLAN tags on a wire. The kernel takes a tag with VLAN ID 0 (a priority tag, IEEE 802.1Q
 * section 9.6) off after the hooks and treats the frame as untagged, so the hooks must do so first,
 * or a cleartext packet behind a tag would pass them unseen. Any other VLAN ID belongs to a VLAN
 * interface on top of the uplink, which is not this hook's. */

struct weft_vlan_frame {
	struct ethhdr eth;
	__be16 tci;
	__be16 inner;
} __attribute__((packed));

#define VLAN_ID_MASK 0x0fff

#ifdef WEFT_XDP

/* Returns 1 if a priority tag has been taken off, 0 if there is none, -1 if that failed. */
ALWAYS_INLINE int untag_once(weft_ctx *ctx)
{
	struct weft_vlan_frame *f = ctx_data(ctx), was;
	struct ethhdr *eth;

	if ((void *)(f + 1) > ctx_end(ctx))
		return 0;
	if ((f->eth.h_proto != bpf_htons(ETH_P_8021Q) &&
	     f->eth.h_proto != bpf_htons(ETH_P_8021AD)) ||
	    f->tci & bpf_htons(VLAN_ID_MASK))
		return 0;
	was = *f;
	if (bpf_xdp_adjust_head(ctx, sizeof(*f) - sizeof(*eth)))
		return -1;
	eth = ctx_data(ctx);
	if ((void *)(eth + 1) > ctx_end(ctx))
		return -1;
	*eth = was.eth;
	eth->h_proto = was.inner;
	return 1;
}

#else

/* The kernel keeps the outer tag beside the frame, and bpf_skb_vlan_pop puts an inner one there. */
ALWAYS_INLINE int untag_once(weft_ctx *ctx)
{
	if (!ctx->vlan_present || ctx->vlan_tci & VLAN_ID_MASK)
		return 0;
	return bpf_skb_vlan_pop(ctx) ? -1 : 1;
}

#endif

/* Takes priority tags off. Returns -1 for a frame that has too many, or that cannot be changed. */
ALWAYS_INLINE int untag(weft_ctx *ctx)
{
	int more = 0;

#pragma clang loop unroll(full)
	for (int i = 0; i <= MAX_PRIORITY_TAGS; i++) {
		more = untag_once(ctx);
		if (more <= 0)
			break;
	}
	return more ? -1 : 0;
}

#endif
