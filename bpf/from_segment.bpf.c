// SPDX-License-Identifier: GPL-2.0-only
/* from_segment: the far end of the segmentation veth. Every frame here is one packet with its
 * checksum in place and the decision of the hook that sent it: it is sealed and leaves by the
 * uplink, or, ESP itself, is given back to from_wire. TC only. */
#include "lib/forward.h"

/* Whose packet it was, for the counters and the event: the agent finds the missing key's node by
 * it. A frame that could not be sealed is still as it was, but for failures of the cipher. */
ALWAYS_INLINE int refuse(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			 int reason)
{
	struct weft_endpoint *ep;

	parse(ctx, p);
	ep = endpoint_at(NETWORK_CLUSTER, &p->src);
	if (ep)
		p->slot = ep->slot;
	return drop(cfg, p, reason);
}

SEC(WEFT_SEC)
int weft_from_segment(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_FROM_SEGMENT, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	__u32 node, identity;
	int reason, act;
	__be32 magic;

	if (!cfg || !weft_sealing)
		return CTX_DROP;
	magic = segment_receive(ctx, &node, &identity);
	if (magic == SEGMENT_OPEN) {
		act = to_uplink_ingress(ctx, node); /* from_wire opens it */
		return act == CTX_DROP ? refuse(ctx, cfg, &p, REASON_NO_NEXT_HOP) : act;
	}
	if (magic != SEGMENT_SEAL)
		return refuse(ctx, cfg, &p, REASON_INTERNAL);
	reason = seal(ctx, cfg, node, identity);
	if (reason)
		return refuse(ctx, cfg, &p, reason);
	act = send_sealed(ctx, node);
	return act == CTX_DROP ? refuse(ctx, cfg, &p, REASON_INTERNAL) : act;
}

char _license[] SEC("license") = "GPL";
