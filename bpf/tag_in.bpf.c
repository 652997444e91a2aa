// SPDX-License-Identifier: GPL-2.0-only
/* tag_in: TC ingress behind an XDP hook. Takes the tag that the hook has left in front of the frame
 * over to the skb, and what somebody else may have written there away. Not every packet has passed
 * the hook: what a TC program redirects here has not (to_first), and brings the metadata along that
 * its sender's own XDP program wrote. So on a pod's interface the interface says who sent it, and
 * elsewhere only who opened a packet is believed, which counts on uplinks alone: no XDP hook gives
 * the stack what it has decided. */
#include "lib/tag.h"
#include "lib/maps.h"

SEC(WEFT_SEC)
int weft_tag_in(weft_ctx *ctx)
{
	struct weft_meta *m = (void *)(long)ctx->data_meta;
	__u32 ifindex = ctx->ifindex;
	struct weft_endpoint *ep = bpf_map_lookup_elem(&weft_ep_if, &ifindex);
	__u16 tag = TAG_NONE;

	if (ep)
		tag = TAG_ENDPOINT | ep->slot;
	else if ((void *)(m + 1) <= (void *)(long)ctx->data && m->magic == META_MAGIC &&
		 TAG_KIND(m->tag) == TAG_OPENED)
		tag = m->tag;
	tag_put(ctx, tag);
	return CTX_PASS;
}

char _license[] SEC("license") = "GPL";
