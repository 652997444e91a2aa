/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_VMFORK_H
#define WEFT_VMFORK_H

#include "ctx.h"

/* How often this virtual machine was forked: resumed from a snapshot with memory, or copied.
 * Counters of SAs went back with the memory, so an earlier key would seal two packets with one
 * nonce. The number goes up once per fork; an SA of another number than the present one is refused,
 * in both directions, until it is removed.
 *
 * Written by vmfork.bpf.c in the kernel's own handling of a new VM generation ID, or by the agent
 * where that program cannot be attached. */
struct weft_vm {
	__u64 generation;
	__u64 log_seq; /* of the last record in the kernel's log that the agent counted */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_vm);
} weft_vm SEC(".maps");

ALWAYS_INLINE int vm_forked(__u64 generation)
{
	__u32 zero = 0;
	struct weft_vm *vm = bpf_map_lookup_elem(&weft_vm, &zero);

	return !vm || *(volatile __u64 *)&vm->generation != generation;
}

#endif
