/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_TAG_H
#define WEFT_TAG_H

#include "ctx.h"

/* How a hook puts a tag (enum weft_tag) on a packet that it gives to the host's stack. */

/* An XDP program has no skb yet: it leaves the tag in front of the frame, as metadata, for tag_in.
 */
struct weft_meta {
	__u16 magic;
	__u16 tag;
};

#ifdef WEFT_XDP

/* Makes the frame's metadata the tag and nothing else: there may be some of whoever sent the frame.
 * Fails where the driver has no room for metadata, and then there is none. */
ALWAYS_INLINE int tag_put(weft_ctx *ctx, __u16 tag)
{
	struct weft_meta *m;
	int there = ctx->data - ctx->data_meta;

	if (there < 0)
		return -1;
	if (bpf_xdp_adjust_meta(ctx, there - (int)sizeof(*m)))
		return -1;
	m = (void *)(long)ctx->data_meta;
	if ((void *)(m + 1) > (void *)(long)ctx->data)
		return -1;
	m->magic = META_MAGIC;
	m->tag = tag;
	return 0;
}

ALWAYS_INLINE void tag_clear(weft_ctx *ctx) {}

#else

/* Also as class: where another program behind this one ends the chain by TC_ACT_OK, the kernel
 * writes the class into tc_index (tcx_action_code). */
ALWAYS_INLINE int tag_put(weft_ctx *ctx, __u16 tag)
{
	ctx->tc_index = tag;
	ctx->tc_classid = tag;
	return 0;
}
ALWAYS_INLINE void tag_clear(weft_ctx *ctx) { ctx->tc_index = TAG_NONE; }

#endif

#endif
