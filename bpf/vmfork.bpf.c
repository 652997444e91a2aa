// SPDX-License-Identifier: GPL-2.0-only
/* Voids every key in the moment in which the kernel learns that its virtual machine was resumed
 * from a snapshot or copied, with or without an agent. */
#include "lib/vmfork.h"

char _license[] SEC("license") = "GPL";

/* Wakes the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} weft_vm_events SEC(".maps");

/* The driver of the VM generation ID calls this, and only when the ID has changed. */
SEC("fentry/add_vmfork_randomness")
int weft_vmfork(void *ctx)
{
	__u32 zero = 0;
	struct weft_vm *vm = bpf_map_lookup_elem(&weft_vm, &zero);
	__u64 now;

	if (!vm)
		return 0;
	now = __sync_add_and_fetch(&vm->generation, 1);
	bpf_ringbuf_output(&weft_vm_events, &now, sizeof(now), 0);
	return 0;
}
