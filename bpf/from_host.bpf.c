// SPDX-License-Identifier: GPL-2.0-only
/* from_host: the far end of the pair. Every frame here is one packet with its checksum in place and the
 * decision of the hook that sent it; it is sealed and leaves by the uplink. TC only. */
#include "lib/forward.h"

/* Whose packet it was, for the counters and the event: the agent finds the missing key's node by it. A frame
 * that could not be sealed is still as it was, but for failures of the cipher. */
ALWAYS_INLINE int refuse(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p, int reason)
{
	struct weft_endpoint *ep;

	parse(ctx, p);
	ep = bpf_map_lookup_elem(&weft_ep_addr, &p->src);
	if (ep)
		p->slot = ep->slot;
	return drop(cfg, p, reason);
}

SEC(WEFT_SEC)
int weft_from_host(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_FROM_HOST, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	__u32 node, identity;
	int reason;

	if (!cfg || !weft_sealing || !pair_receive(ctx, &node, &identity))
		return CTX_DROP;
	reason = seal(ctx, cfg, node, identity);
	return reason ? refuse(ctx, cfg, &p, reason) : send_sealed(ctx, node);
}

char _license[] SEC("license") = "GPL";
