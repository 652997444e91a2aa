// SPDX-License-Identifier: GPL-2.0-only
/* from_wire: what arrives on the node's uplink. Only packets for this node's endpoints are
 * Weft's; everything else is the host's own and goes to its stack untouched. */
#include "lib/arrive.h"
#include "lib/vlan.h"

/* Opens the packet if it is sealed. Returns -1, and what to do with it, if it could not be. */
ALWAYS_INLINE int open_sealed(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p,
			      int *act)
{
	int reason;

	if (!weft_sealing || !(cfg->flags & CONFIG_SEAL))
		return 0;
	reason = open(ctx, cfg, p);
	if (reason > 0 || reason == OPEN_ELSEWHERE) {
		*act = reason > 0 ? drop(cfg, p, reason) : CTX_REDIRECT;
		return -1;
	}
	*p = (struct weft_pkt){.hook = HOOK_FROM_WIRE,
			       .direction = DIR_INGRESS,
			       .node = p->node,
			       .identity = p->identity};
	return 0;
}

/* A frame for this hook. Others, of VLANs on top of the uplink, are not. */
ALWAYS_INLINE int receive(weft_ctx *ctx, const struct weft_config *cfg, struct weft_pkt *p)
{
	int act;

	return open_sealed(ctx, cfg, p, &act) ? act : arrive(ctx, cfg, p, 0);
}

#ifdef WEFT_XDP
ALWAYS_INLINE int is_opened(weft_ctx *ctx, const struct weft_config *cfg) { return 0; }
#else
/* Whether from_sealer has opened the packet and looked at it, and gives it to the stack by this
 * uplink. */
ALWAYS_INLINE int is_opened(weft_ctx *ctx, const struct weft_config *cfg)
{
	__u32 mark = ctx->mark;

	if (!weft_sealing || !cfg->sealer_ifindex || (mark & SEALER_MARK_MASK) != SEALER_MARK)
		return 0;
	ctx->mark = 0;
	tag_put(ctx, mark);
	return 1;
}
#endif

SEC(WEFT_SEC)
int weft_from_wire(weft_ctx *ctx)
{
	struct weft_pkt p = {.hook = HOOK_FROM_WIRE, .direction = DIR_INGRESS};
	const struct weft_config *cfg = config();

	if (!cfg)
		return CTX_DROP;
	if (is_opened(ctx, cfg))
		return CTX_PASS;
	tag_clear(ctx);
	if (untag(ctx)) {
		parse(ctx, &p);
		return drop(cfg, &p, REASON_VLAN_TAGGED);
	}
	return receive(ctx, cfg, &p);
}

char _license[] SEC("license") = "GPL";
