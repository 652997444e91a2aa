/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_CLOCK_H
#define WEFT_CLOCK_H

#include "ctx.h"

/* The time, as exact as the kernel's tick (1 to 10 ms). A packet asks for it up to four times, and
 * one answer of the kernel's takes about 50 ns, so each CPU asks once per tick: jiffies, which a
 * program reads as any variable, tell one from the next. What is asked for is a time much longer
 * than a tick. */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_clock);
} weft_clock SEC(".maps");

#ifdef WEFT_NETFILTER
/* Netfilter programs may not have the coarse clock. */
#define clock_now() bpf_ktime_get_ns()
#else
#define clock_now() bpf_ktime_get_coarse_ns()
#endif

ALWAYS_INLINE struct weft_clock *clock_of_tick(void)
{
	__u32 zero = 0;
	struct weft_clock *c = bpf_map_lookup_elem(&weft_clock, &zero);
	__u64 tick = bpf_jiffies64();

	if (c && unlikely(c->tick != tick)) {
		c->mono_ns = clock_now();
		c->boot_ns = bpf_ktime_get_boot_ns();
		c->tick = tick;
	}
	return c;
}

/* CLOCK_MONOTONIC, nanoseconds. */
ALWAYS_INLINE __u64 clock_mono(void)
{
	struct weft_clock *c = clock_of_tick();

	return c ? c->mono_ns : 0;
}

/* CLOCK_BOOTTIME, nanoseconds: it goes on while the machine sleeps. */
ALWAYS_INLINE __u64 clock_boot(void)
{
	struct weft_clock *c = clock_of_tick();

	return c ? c->boot_ns : ~0ULL;
}

#endif
