// SPDX-License-Identifier: GPL-2.0-only
/* For tests and measurements only: one packet through the engine, without the framing. The frame is
 *   struct test_head | text | room for the tag */
#include "lib/aead.h"
#include "lib/replay.h"

struct test_head {
	__u8 eth[ETH_LEN];
	__u16 aad_len;
	__u32 id;
	__u32 len;
	__be64 iv;
	__u8 aad[16];
	__u32 result;
	__u32 pad;
} __attribute__((packed));
_Static_assert(sizeof(struct test_head) == 56, "user space has the same");

/* Takes the buffer and fills it from the frame. */
ALWAYS_INLINE struct weft_crypt *test_begin(weft_ctx *ctx, __u32 *id, __u32 *len)
{
	struct test_head *h = ctx_data(ctx);
	struct weft_crypt *s;

	if ((void *)(h + 1) > ctx_end(ctx))
		return NULL;
	s = crypt_get();
	if (!s)
		return NULL;
	s->aad_len = h->aad_len;
	s->iv = h->iv;
	__builtin_memcpy(s->aad, h->aad, 16);
	*id = h->id;
	*len = h->len;
	return s;
}

ALWAYS_INLINE int test_end(weft_ctx *ctx, struct weft_crypt *s, int result)
{
	struct test_head *h = ctx_data(ctx);

	__builtin_memset(s->aad, 0, 16);
	crypt_put(s);
	if ((void *)(h + 1) > ctx_end(ctx))
		return 99;
	h->result = result;
	return -result;
}

ALWAYS_INLINE int test_text(weft_ctx *ctx, struct weft_crypt *s, __u32 len)
{
	if (outside(len, 1, MAX_TEXT))
		return -1;
	return ctx_load(ctx, sizeof(struct test_head), s->text, len);
}

SEC(WEFT_SEC)
int weft_test_seal(weft_ctx *ctx)
{
	__u32 id, len;
	struct weft_crypt *s = test_begin(ctx, &id, &len);
	struct weft_sa_out *sa;

	if (!s)
		return 98;
	sa = bpf_map_lookup_elem(&weft_sa_out, &id);
	if (!sa || test_text(ctx, s, len))
		return test_end(ctx, s, -97);
	return test_end(ctx, s, aead_seal(ctx, sa, sizeof(struct test_head), len));
}

SEC(WEFT_SEC)
int weft_test_open(weft_ctx *ctx)
{
	__u32 id, len;
	struct weft_crypt *s = test_begin(ctx, &id, &len);
	struct weft_sa_in *sa;

	if (!s)
		return 98;
	sa = bpf_map_lookup_elem(&weft_sa_in, &id);
	return test_end(ctx, s, sa ? aead_open(ctx, sa, sizeof(struct test_head), len) : -97);
}

/* Leaves the frame as it was: what may be run again and again. */
SEC(WEFT_SEC)
int weft_test_both(weft_ctx *ctx)
{
	__u32 id, len;
	struct weft_crypt *s = test_begin(ctx, &id, &len);
	struct weft_sa_out *out;
	struct weft_sa_in *in;
	int err;

	if (!s)
		return 98;
	out = bpf_map_lookup_elem(&weft_sa_out, &id);
	in = bpf_map_lookup_elem(&weft_sa_in, &id);
	if (!out || !in || test_text(ctx, s, len))
		return test_end(ctx, s, -97);
	err = aead_seal(ctx, out, sizeof(struct test_head), len);
	if (!err)
		err = aead_open(ctx, in, sizeof(struct test_head), len);
	return test_end(ctx, s, err);
}

ALWAYS_INLINE int test_number(weft_ctx *ctx, const __u64 *seq, int reason)
{
	struct test_head *h = ctx_data(ctx);

	if ((void *)(h + 1) > ctx_end(ctx))
		return 99;
	h->iv = *seq;
	return reason;
}

/* The counters, without a packet. Each returns a drop reason. */
SEC(WEFT_SEC)
int weft_test_take(weft_ctx *ctx)
{
	struct test_head *h = ctx_data(ctx);
	struct weft_sa_out *sa;
	__u64 seq = 0;
	__u32 id;

	if ((void *)(h + 1) > ctx_end(ctx))
		return 99;
	id = h->id;
	sa = bpf_map_lookup_elem(&weft_sa_out, &id);
	return test_number(ctx, &seq, sa_take(sa, 1, &seq));
}

SEC(WEFT_SEC)
int weft_test_admit(weft_ctx *ctx)
{
	struct test_head *h = ctx_data(ctx);
	struct weft_sa_in *sa;
	__u64 seq = 0;
	__u32 id;

	if ((void *)(h + 1) > ctx_end(ctx))
		return 99;
	id = h->id;
	sa = bpf_map_lookup_elem(&weft_sa_in, &id);
	return test_number(ctx, &seq, sa_admit(sa, h->len, &seq));
}

SEC(WEFT_SEC)
int weft_test_commit(weft_ctx *ctx)
{
	struct test_head *h = ctx_data(ctx);
	struct weft_sa_in *sa;
	__u32 id;

	if ((void *)(h + 1) > ctx_end(ctx))
		return 99;
	id = h->id;
	sa = bpf_map_lookup_elem(&weft_sa_in, &id);
	return sa ? sa_commit(sa, h->iv, h->aad_len ?: 1, h->len) : REASON_ESP_UNKNOWN_SA;
}

/* The parts, to measure them by themselves. */
ALWAYS_INLINE int test_part(weft_ctx *ctx, int hash)
{
	__u32 id, len;
	struct weft_crypt *s = test_begin(ctx, &id, &len);
	struct weft_sa_out *sa;
	struct bpf_crypto_ctx *cipher;
	struct weft_key *key;
	int result = -97;

	if (!s)
		return 98;
	sa = bpf_map_lookup_elem(&weft_sa_out, &id);
	if (!sa || !len || len > MAX_TEXT)
		return test_end(ctx, s, result);
	cipher = sa->head.cipher;
	key = sa->head.key;
	if (cipher && key) {
		if (!hash)
			result = gcm_stream(s, cipher, key->salt, (len + 15) >> 4);
		else
			result = gcm_pass(s, key, len, GCM_HASH);
	}
	return test_end(ctx, s, result);
}

SEC(WEFT_SEC)
int weft_test_aes(weft_ctx *ctx) { return test_part(ctx, 0); }

SEC(WEFT_SEC)
int weft_test_ghash(weft_ctx *ctx) { return test_part(ctx, 1); }

char _license[] SEC("license") = "GPL";
