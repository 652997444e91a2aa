// SPDX-License-Identifier: GPL-2.0-only
/* to_wire: what the host's stack sends to the wire for a pod of this node, on the uplink's
 * egress. TC only. Such a flow is the stack's (it may have been translated: a Service's
 * address on its way out), so its replies must go through the stack too. */
#include "lib/forward.h"

SEC(WEFT_SEC)
int weft_to_wire(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_TO_WIRE, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	struct weft_endpoint *ep;

	if (!cfg || ctx_was_routed(ctx))
		return CTX_PASS;
	if (parse(ctx, &p) || !p.family)
		return CTX_PASS;
	ep = bpf_map_lookup_elem(&weft_ep_addr, &p.src);
	if (!ep)
		return CTX_PASS;
	p.slot = ep->slot;
	note_from_stack(cfg, &p);
	return CTX_PASS;
}

char _license[] SEC("license") = "GPL";
