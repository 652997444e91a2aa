/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_SA_H
#define WEFT_SA_H

#include "clock.h"
#include "ghash.h"
#include "reasons.h"
#include "vmfork.h"

/* Security associations: what this node seals with (out) and opens with (in), by node, epoch and
 * lane.
 *
 * Secrets are in kernel objects that the maps only point to (kptr), so no dump of a map shows them:
 * the AES key in a bpf_crypto context, the salt and GHASH's powers of H in struct weft_key.
 *
 * Life of an entry: user space adds it (SA_NEW), puts the key in (SA_LIVE, by one atomic exchange
 * of the kptr), marks it (SA_DEAD), waits for a grace period, and only then wipes its secrets and
 * deletes it. A program that saw it alive therefore keeps a whole key and a counter of its own
 * until it ends. */

#ifndef __kptr
#define __kptr __attribute__((btf_type_tag("kptr")))
#endif

#define SA_WINDOW_WORDS 64
/* How many numbers back from the highest are told apart: RFC 6479 keeps one word of the ring free.
 */
#define SA_WINDOW ((SA_WINDOW_WORDS - 1) * 64 + 1)

/* Lifetimes and install times are CLOCK_BOOTTIME nanoseconds: that clock goes on while the machine
 * sleeps and nobody can set it. */

/* The kernel's own type; only its address is used. A full type, since the loader does not match
 * declarations.
 */
struct bpf_crypto_ctx {
};

enum weft_engine { ENGINE_NONE, ENGINE_BPF, ENGINE_KMOD, ENGINE_USER };
enum weft_sa_state { SA_NEW, SA_LIVE, SA_DEAD };

/* What both kinds begin with. */
enum weft_sa_sealer {
	/* The sealer holds the key, too; of ENGINE_USER, with which no hook seals, alone. */
	SEALER_HOLDS = 1 << 0,
	/* Of an SA to open with: the peer's packets come from its sealer, as one of them has shown.
	 */
	SEALER_SENDS = 1 << 1,
};

struct weft_sa_head {
	struct bpf_crypto_ctx __kptr *cipher;
	struct weft_key __kptr *key;
	__u64 fingerprint; /* of the keys, never 0 */
	__u64 number;	   /* of the epoch */
	__u64 installed_ns;
	__u64 expires_ns;
	__u64 bytes;
	__u64 vm_generation; /* of the machine when the handshake began */
	__u32 state;
	__u32 engine;
	__u32 sealer; /* enum weft_sa_sealer */
	__u32 pad;
};

struct weft_sa_out {
	struct weft_sa_head head;
	__u64 limit;   /* last counter that may be used */
	__u64 counter; /* last one used */
};

struct weft_sa_in {
	struct weft_sa_head head;
	__u64 packets;
	struct bpf_spin_lock lock; /* of top and window */
	__u32 pad;
	__u64 top; /* highest sequence number that was opened */
	__u64 window[SA_WINDOW_WORDS];
};

/* How a node is reached through the tunnel, and with which epoch it is sent to (0: none, nothing
 * is). */
struct weft_peer {
	__u8 epoch;
	__u8 lanes; /* that our hooks seal on; the one behind them is the sealer's */
	__u8 family;
	__u8 flags;
	__u16 mtu;
	__u16 pad;
	union weft_addr local, remote;
	__u64 id; /* fingerprint of the epoch's keys */
};

/* Highest counter of keys that were removed: they are not to be used again. */
struct weft_sa_used_key {
	__u64 fingerprint;
	__u8 lane;
	__u8 out;
	__u8 pad[6];
};

#define WEFT_MAX_SA_OUT	 65536
#define WEFT_MAX_SA_IN	 131072
#define WEFT_MAX_SA_USED 65536

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_SA_OUT);
	__type(key, __u32);
	__type(value, struct weft_sa_out);
} weft_sa_out SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_SA_IN);
	__type(key, __u32);
	__type(value, struct weft_sa_in);
} weft_sa_in SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEFT_MAX_NODES);
	__type(key, __u32);
	__type(value, struct weft_peer);
} weft_peers SEC(".maps");

/* Never called. Without it the compiler describes the structs by their names only where the maps
 * point to them, and the kernel refuses such maps. */
SUBPROGRAM int weft_describe(struct weft_key *key, struct bpf_crypto_ctx *cipher)
{
	return !key || !cipher;
}

/* node << 10 | epoch << 6 | lane */
ALWAYS_INLINE __u32 sa_id(__u32 node, __u32 epoch, __u32 lane)
{
	return node << 10 | epoch << 6 | lane;
}

/* This CPU's lane towards a peer. */
ALWAYS_INLINE __u32 sa_lane(const struct weft_peer *peer)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return peer->lanes ? (cpu % peer->lanes) & 63 : 0;
}

/* Whether an SA may be used now. Returns a drop reason; missing is that of one that is not there.
 */
ALWAYS_INLINE int sa_usable(const struct weft_sa_head *sa, int missing)
{
	if (sa->state != SA_LIVE)
		return missing;
	if (vm_forked(sa->vm_generation))
		return REASON_VM_FORKED;
	return clock_boot() >= sa->expires_ns ? REASON_KEY_EXPIRED : REASON_NONE;
}

/* Whether the SA that this node seals with may be used. Returns a drop reason. */
ALWAYS_INLINE int sa_seals(const struct weft_sa_out *sa)
{
	return sa ? sa_usable(&sa->head, REASON_NO_KEY) : REASON_NO_KEY;
}

/* Gives the next count sequence numbers of the SA that this node seals with, the first in seq:
 * never the same twice, whoever asks at the same time. Returns a drop reason. */
ALWAYS_INLINE int sa_take(struct weft_sa_out *sa, __u32 count, __u64 *seq)
{
	int reason = sa_seals(sa);
	__u64 n;

	if (reason || !sa)
		return reason;
	if (sa->counter >= sa->limit)
		return REASON_KEY_EXHAUSTED;
	n = __sync_fetch_and_add(&sa->counter, count) + 1;
	if (n + count - 1 > sa->limit)
		return REASON_KEY_EXHAUSTED;
	*seq = n;
	return REASON_NONE;
}

#endif
