/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_KFUNCS_H
#define WEFT_KFUNCS_H

#include "sa.h"

/* Kernel functions, since Linux 6.10 (bpf_crypto), 6.4 (dynptr) and 6.5 (adjust). Weak: a program
 * that does not seal, whose calls the verifier removes, loads on kernels without them. */

struct bpf_crypto_params {
	char type[14];
	__u8 reserved[2];
	char algo[128];
	__u8 key[256];
	__u32 key_len;
	__u32 authsize;
};

/* Headers older than the function; BPF_F_BEFORE came two releases later. */
#ifndef BPF_F_BEFORE
struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));
#endif

extern struct bpf_crypto_ctx *bpf_crypto_ctx_create(const struct bpf_crypto_params *params,
						    __u32 params__sz, int *err) __ksym __weak;
extern void bpf_crypto_ctx_release(struct bpf_crypto_ctx *ctx) __ksym __weak;
extern int bpf_crypto_encrypt(struct bpf_crypto_ctx *ctx, const struct bpf_dynptr *src,
			      const struct bpf_dynptr *dst,
			      const struct bpf_dynptr *siv__nullable) __ksym __weak;
extern int bpf_crypto_decrypt(struct bpf_crypto_ctx *ctx, const struct bpf_dynptr *src,
			      const struct bpf_dynptr *dst,
			      const struct bpf_dynptr *siv__nullable) __ksym __weak;
extern int bpf_dynptr_from_xdp(struct xdp_md *xdp, __u64 flags,
			       struct bpf_dynptr *ptr) __ksym __weak;
extern int bpf_dynptr_from_skb(struct __sk_buff *skb, __u64 flags,
			       struct bpf_dynptr *ptr) __ksym __weak;
extern int bpf_dynptr_adjust(const struct bpf_dynptr *p, __u32 start, __u32 end) __ksym __weak;
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym __weak;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym __weak;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym __weak;

#ifdef WEFT_XDP
#define ctx_dynptr(ctx, ptr) bpf_dynptr_from_xdp(ctx, 0, ptr)
#else
#define ctx_dynptr(ctx, ptr) bpf_dynptr_from_skb(ctx, 0, ptr)
#endif

/* A loop whose body the verifier looks at once or twice, whatever the count. */
#ifndef bpf_for
#define bpf_for(i, start, end)                                                                     \
	for (struct bpf_iter_num it__ __attribute__((aligned(8), cleanup(bpf_iter_num_destroy))),  \
	     *p__ __attribute__((unused)) = (bpf_iter_num_new(&it__, (start), (end)), (void *)0);  \
	     ({                                                                                    \
		     int *t__ = bpf_iter_num_next(&it__);                                          \
		     (t__ ? ((i) = *t__, 1) : 0);                                                  \
	     }) &&                                                                                 \
	     (i) >= (start) && (i) < (end);)
#endif

#endif
