// SPDX-License-Identifier: GPL-2.0-only
/* to_pod: what the host's stack sends to a pod, on the host side of the pod's interface. TC only:
 * redirects from the other hooks do not pass here. */
#include "lib/forward.h"

SEC(WEFT_SEC)
int weft_to_pod(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_TO_POD, .direction = DIR_INGRESS};
	const struct weft_config *cfg = config();
	struct weft_endpoint *ep;

	if (!cfg || ctx_was_routed(ctx))
		return CTX_PASS;
	if (parse(ctx, &p) || !p.family)
		return CTX_PASS;
	ep = bpf_map_lookup_elem(&weft_ep_if, &p.ifindex);
	if (!ep)
		return CTX_PASS;
	p.slot = ep->slot;
	count(ep->slot, DIR_INGRESS, VERDICT_LOCAL, p.packets, p.len);
	note_from_stack(cfg, &p);
	return CTX_PASS;
}

char _license[] SEC("license") = "GPL";
