// SPDX-License-Identifier: GPL-2.0-only
/* from_host: the far end of the pair. Every frame here is one packet with its checksum in place and the
 * decision of the hook that sent it; it is sealed and leaves by the uplink. TC only. */
#include "lib/forward.h"

SEC(WEFT_SEC)
int weft_from_host(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_FROM_HOST, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();
	__u32 node, identity;
	int reason;

	if (!cfg || !weft_sealing || !pair_receive(ctx, &node, &identity))
		return CTX_DROP;
	p.len = ctx_len(ctx);
	p.packets = 1;
	reason = seal(ctx, cfg, node, identity);
	if (!reason)
		return send_sealed(ctx, node);
	return drop(cfg, &p, reason);
}

char _license[] SEC("license") = "GPL";
