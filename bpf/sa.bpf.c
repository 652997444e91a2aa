// SPDX-License-Identifier: GPL-2.0-only
/* What user space runs to change security associations. Key bytes come in a program's context or
 * frame only, which is no map's memory, and are overwritten before it ends.
 *
 * An entry is made in this order: user space adds it and has an empty key object put in;
 * weft_sa_fill makes the cipher; weft_sa_powers, run on a frame of its own because only packet
 * programs may encrypt, computes GHASH's powers; weft_sa_state declares it alive. See sa.h for how
 * it ends. */
#include "lib/kfuncs.h"

#define ENOENT	    2
#define ESTALE	    116
#define ENOKEY	    126
#define EKEYEXPIRED 127

char _license[] SEC("license") = "GPL";

extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;

/* For user space alone, kept where they outlive the agent. */
struct weft_node_name {
	char name[256];
};

/* Keys that were removed, with the last counter: nobody may start again from 1 with them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, WEFT_MAX_SA_USED);
	__type(key, struct weft_sa_used_key);
	__type(value, __u64);
} weft_sa_used SEC(".maps");

/* The node that SAs belong to, by its index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_NODES);
	__type(key, __u32);
	__type(value, struct weft_node_name);
} weft_sa_nodes SEC(".maps");

struct sa_request {
	struct bpf_crypto_params params;
	__u32 id;
	__u32 out;
	__u32 salt;
	__u32 engine;
	__u32 state;
	int result;
	__u64 fingerprint;
	__u64 expires_ns;
};

/* Overwrites the request's secrets, also where they are dead stores. */
ALWAYS_INLINE void wipe_request(struct sa_request *r)
{
	volatile __u64 *key = (void *)r->params.key;

#pragma clang loop unroll(full)
	for (__u32 i = 0; i < sizeof(r->params.key) / 8; i++)
		key[i] = 0;
	*(volatile __u32 *)&r->salt = 0;
}

/* The powers of H come later; the module needs none. */
ALWAYS_INLINE int set_salt(struct weft_key *key, __u32 salt, __u32 engine)
{
	if (!key)
		return -ENOKEY;
	key->salt = salt;
	key->ready = engine == ENGINE_KMOD;
	return 0;
}

/* The common part of an entry; NULL if it is not there. */
ALWAYS_INLINE struct weft_sa_head *sa_head(__u32 id, __u32 out)
{
	struct weft_sa_out *sa_out;
	struct weft_sa_in *sa_in;

	if (out) {
		sa_out = bpf_map_lookup_elem(&weft_sa_out, &id);
		return sa_out ? &sa_out->head : NULL;
	}
	sa_in = bpf_map_lookup_elem(&weft_sa_in, &id);
	return sa_in ? &sa_in->head : NULL;
}

/* Whether the kernel has the cipher. */
SEC("syscall")
int weft_sa_probe(struct sa_request *r)
{
	struct bpf_crypto_ctx *cipher;
	int err = 0;

	cipher = bpf_crypto_ctx_create(&r->params, sizeof(r->params), &err);
	wipe_request(r);
	r->result = err;
	if (!cipher)
		return 0;
	bpf_crypto_ctx_release(cipher);
	r->result = 0;
	return 0;
}

/* Gives an entry that is not alive its cipher and salt. */
SEC("syscall")
int weft_sa_fill(struct sa_request *r)
{
	__u32 salt = r->salt, engine = r->engine, id = r->id, out = r->out;
	struct bpf_crypto_ctx *cipher;
	struct weft_sa_head *sa;
	int err = 0;

	cipher = bpf_crypto_ctx_create(&r->params, sizeof(r->params), &err);
	wipe_request(r);
	if (!cipher) {
		r->result = err;
		return 0;
	}
	err = -ENOENT;
	sa = sa_head(id, out);
	if (sa) {
		bpf_rcu_read_lock();
		err = set_salt(sa->key, salt, engine);
		bpf_rcu_read_unlock();
		cipher = bpf_kptr_xchg(&sa->cipher, cipher);
	}
	if (cipher)
		bpf_crypto_ctx_release(cipher);
	r->result = err;
	return 0;
}

/* The frame that weft_sa_powers runs on. */
struct powers_frame {
	__u8 eth[16];
	__u32 id;
	__u32 out;
	int result;
	__u32 pad;
	struct ghash_block block; /* zeroes; H for a moment */
};
_Static_assert(sizeof(struct powers_frame) == 48, "user space has the same");

ALWAYS_INLINE int set_powers(struct xdp_md *ctx, struct weft_key *key,
			     struct bpf_crypto_ctx *cipher)
{
	struct powers_frame *f;
	struct ghash_block h, power;
	struct bpf_dynptr block;
	int err;

	if (!key || !cipher)
		return -ENOKEY;
	err = bpf_dynptr_from_xdp(ctx, 0, &block);
	if (!err)
		err = bpf_dynptr_adjust(&block, __builtin_offsetof(struct powers_frame, block),
					sizeof(*f));
	if (!err)
		err = bpf_crypto_encrypt(cipher, &block, &block, NULL);
	f = ctx_data(ctx);
	if ((void *)(f + 1) > ctx_end(ctx))
		return -ENOENT;
	h = f->block;
	*(volatile __u64 *)&f->block.l = 0;
	*(volatile __u64 *)&f->block.r = 0;
	if (err)
		return err;
	ghash_set_power(key, GHASH_GROUP - 1, h);
	power = h;
#pragma clang loop unroll(full)
	for (int i = GHASH_GROUP - 2; i >= 0; i--) {
		power = ghash_multiply(power, key);
		ghash_set_power(key, i, power);
	}
	barrier();
	key->ready = 1;
	return 0;
}

/* H is the encrypted zero block. */
SEC("xdp")
int weft_sa_powers(struct xdp_md *ctx)
{
	struct powers_frame *f = ctx_data(ctx);
	struct weft_sa_head *sa;
	int err = -ENOENT;

	if ((void *)(f + 1) > ctx_end(ctx))
		return XDP_ABORTED;
	sa = sa_head(f->id, f->out);
	if (sa)
		err = set_powers(ctx, sa->key, sa->cipher);
	f = ctx_data(ctx);
	if ((void *)(f + 1) > ctx_end(ctx))
		return XDP_ABORTED;
	f->result = err;
	return XDP_PASS;
}

/* Says whether packets may use an entry. */
SEC("syscall")
int weft_sa_state(struct sa_request *r)
{
	struct weft_sa_head *sa = sa_head(r->id, r->out);

	r->result = -ENOENT;
	if (!sa)
		return 0;
	sa->state = r->state;
	r->result = 0;
	return 0;
}

/* Says whether the sealer holds an entry's key. */
SEC("syscall")
int weft_sa_sealer(struct sa_request *r)
{
	__u32 out = r->out, holds = r->state;
	struct weft_sa_head *sa = sa_head(r->id, out);

	r->result = -ENOENT;
	if (!sa)
		return 0;
	r->result = -ESTALE;
	if (sa->fingerprint != r->fingerprint || (out && holds && sa->engine != ENGINE_USER))
		return 0;
	sa->sealer = (sa->sealer & SEALER_SENDS) | (holds ? SEALER_HOLDS : 0);
	r->result = 0;
	return 0;
}

/* Moves the end of keys that are in use: never back, and never of keys that have ended. Packets on
 * other CPUs see the old end or the new one. */
ALWAYS_INLINE int extend(struct sa_request *r, struct weft_sa_head *sa)
{
	__u64 until = r->expires_ns, was = sa->expires_ns;

	if (sa->state != SA_LIVE || sa->fingerprint != r->fingerprint)
		return -ESTALE;
	if (bpf_ktime_get_boot_ns() >= was)
		return -EKEYEXPIRED;
	if (until > was)
		*(volatile __u64 *)&sa->expires_ns = until;
	return 0;
}

SEC("syscall")
int weft_sa_extend(struct sa_request *r)
{
	struct weft_sa_head *sa = sa_head(r->id, r->out);

	r->result = sa ? extend(r, sa) : -ENOENT;
	return 0;
}

ALWAYS_INLINE void wipe_key(struct weft_key *key)
{
	volatile __u64 *word = (void *)key;

	if (!key)
		return;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < sizeof(key->h) / 8; i++)
		word[i] = 0;
	*(volatile __u32 *)&key->salt = 0;
	*(volatile __u32 *)&key->ready = 0;
}

/* Overwrites the secrets of an entry that no packet can be using any more. Its cipher is freed, and
 * zeroed by that, a grace period later. */
SEC("syscall")
int weft_sa_wipe(struct sa_request *r)
{
	struct weft_sa_head *sa = sa_head(r->id, r->out);
	struct bpf_crypto_ctx *cipher;

	r->result = -ENOENT;
	if (!sa)
		return 0;
	bpf_rcu_read_lock();
	wipe_key(sa->key);
	bpf_rcu_read_unlock();
	cipher = bpf_kptr_xchg(&sa->cipher, NULL);
	if (cipher)
		bpf_crypto_ctx_release(cipher);
	r->result = 0;
	return 0;
}
