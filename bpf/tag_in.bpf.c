// SPDX-License-Identifier: GPL-2.0-only
/* tag_in: TC ingress behind an XDP hook. Takes the tag that the hook has left in front of the frame over to the
 * skb, and what somebody else may have written there away. */
#include "lib/tag.h"

SEC(WEFT_SEC)
int weft_tag_in(weft_ctx *ctx)
{
	struct weft_meta *m = (void *)(long)ctx->data_meta;
	__u16 tag = TAG_NONE;

	if ((void *)(m + 1) <= (void *)(long)ctx->data && m->magic == META_MAGIC)
		tag = m->tag;
	tag_put(ctx, tag);
	return CTX_PASS;
}

char _license[] SEC("license") = "GPL";
