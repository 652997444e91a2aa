// SPDX-License-Identifier: GPL-2.0-only
/* pod_out: egress of the own interface of a pod on the XDP datapath. The host side of that
 * interface has a native XDP program, so the kernel would cut every GSO packet that leaves by it.
 * This sends the stack's packets by the pod's second interface, whose host side has the TC program
 * and keeps them whole. XDP frames do not pass here: they leave by the first. Nothing depends on it
 * for safety: both host sides hold the same checks. */
#include "lib/ctx.h"

/* Set by the loader: the second interface's index in the pod's namespace. */
const volatile __u32 weft_out_ifindex = 0;

SEC(WEFT_SEC)
int weft_pod_out(weft_ctx *ctx) { return bpf_redirect(weft_out_ifindex, 0); }

char _license[] SEC("license") = "GPL";
