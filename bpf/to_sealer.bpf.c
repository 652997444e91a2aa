// SPDX-License-Identifier: GPL-2.0-only
/* to_sealer: the egress of weft_sealer. The sealer believes the header of what it gets there, so
 * nothing passes but what a hook has put it on: a process may bind a socket to any interface. TC
 * only. */
#include "lib/drop.h"
#include "lib/parse.h"

SEC(WEFT_SEC)
int weft_to_sealer(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_TO_SEALER, .direction = DIR_EGRESS};
	const struct weft_config *cfg = config();

	if (!cfg)
		return CTX_DROP;
	if (TAG_KIND(ctx->tc_index) == TAG_ROUTED)
		return CTX_PASS;
	parse(ctx, &p);
	return drop(cfg, &p, REASON_NOT_FOR_SEALER);
}

char _license[] SEC("license") = "GPL";
