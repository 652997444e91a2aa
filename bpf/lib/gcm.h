/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_GCM_H
#define WEFT_GCM_H

#include "sa.h"
#include "kfuncs.h"

/* Engine "bpf": AES-GCM where the kernel gives BPF the block cipher only. One call encrypts all
 * counter blocks; GHASH and the XOR with the key stream go over the text together. */

/* The longest text: a jumbo frame's packet and the ESP trailer. */
#define MAX_TEXT 9216

#define SUM_CHUNK 512 /* bpf_csum_diff's limit before Linux 6.13, bytes */

/* In front of the text: zero blocks that fill the first group up, then the AAD. */
#define GCM_HEAD (GHASH_GROUP * 16)
#define GCM_ROOM (GCM_HEAD + MAX_TEXT + 160)

/* One packet's work, per CPU: too large for the stack. Nothing in it outlives crypt_put but the
 * packet's own bytes and the key stream that they can be computed from; above all not the encrypted
 * first counter block, or the hash before it was encrypted, from which H could be computed. */
struct weft_crypt {
	__u32 busy;
	__u32 aad_len;
	__be64 iv;
	__u8 siv[32]; /* kmod: nonce, AAD */
	__u64 sums[GHASH_GROUP][6 * GHASH_SUMS];
	__u64 products[9]; /* of one pair of words, added up */
	__u64 halves[6];
	struct ghash_block hash; /* so far */
	struct ghash_block mask; /* the first counter block, encrypted: wiped after use */
	struct ghash_block tag;	 /* as received */
	__u8 stream[GCM_ROOM]; /* counter blocks, then key stream; zero in its first GCM_HEAD bytes
				*/
	__u8 zero[GCM_HEAD - 16];
	__u8 aad[16]; /* with the text behind it, as GHASH wants it */
	__u8 text[GCM_ROOM - GCM_HEAD];
	__u8 beyond[SUM_CHUNK]; /* for the verifier: a chunk may begin anywhere in the text */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_crypt);
} weft_crypt SEC(".maps");

#define ESP_AAD_LEN 12

ALWAYS_INLINE struct weft_crypt *crypt_buffer(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weft_crypt, &zero);
}

/* Takes this CPU's buffer. NULL if a program that was interrupted has it: the packet is then
 * dropped. */
ALWAYS_INLINE struct weft_crypt *crypt_get(void)
{
	struct weft_crypt *s = crypt_buffer();

	if (!s || __sync_lock_test_and_set(&s->busy, 1))
		return NULL;
	s->aad_len = ESP_AAD_LEN;
	return s;
}

ALWAYS_INLINE void crypt_put(struct weft_crypt *s)
{
	barrier();
	s->busy = 0;
}

#define GCM_BLOCK(s, area, at)                                                                     \
	((struct ghash_block *)((void *)(s) + __builtin_offsetof(struct weft_crypt, area) + (at)))

/* Eight counter blocks of the text's. */
ALWAYS_INLINE void gcm_counters(struct weft_crypt *s, __u64 first, __u64 second, __u32 i)
{
	__u32 at = GCM_HEAD + i * 128;

	forget(at);
	if (at > GCM_ROOM - 128)
		return;
	for (__u32 j = 0; j < 8; j++) {
		*GCM_BLOCK(s, stream, at + j * 16) =
		    (struct ghash_block){first, second | (__u64)bpf_htonl(2 + i * 8 + j) << 32};
	}
}

/* Fills the stream with the counter blocks of n text blocks (2, 3…) and behind them the first one
 * (1), which encrypts the tag, and encrypts them all. */
static __noinline int gcm_stream(struct weft_crypt *s, struct bpf_crypto_ctx *cipher, __u32 salt,
				 __u32 n)
{
	__u64 first = salt | s->iv << 32, second = s->iv >> 32;
	struct bpf_dynptr blocks;
	__u32 size, i, at;

	gcm_counters(s, first, second, 0);
	/* Small packets are spared the loop's calls. */
	if (n >= 8) {
		bpf_for(i, 1, (n + 8) >> 3) gcm_counters(s, first, second, i);
	}
	at = GCM_HEAD + n * 16;
	forget(at);
	if (at > GCM_ROOM - 128)
		return -1;
	*GCM_BLOCK(s, stream, at) = (struct ghash_block){first, second | (__u64)bpf_htonl(1) << 32};
	size = (n + 1) * 16;
	forget(size);
	if (size > MAX_TEXT + 16)
		return -1;
	if (bpf_dynptr_from_mem(s->stream + GCM_HEAD, size, 0, &blocks))
		return -1;
	return bpf_crypto_encrypt(cipher, &blocks, &blocks, NULL);
}

enum gcm_mode { GCM_SEAL, GCM_OPEN, GCM_HASH };

/* Takes a group of blocks from the given one on, ciphertext for GHASH, and leaves the other text in
 * its place. What is on the way between its steps is kept in the buffer and not on the stack, of
 * which the hooks can spare little: hence the barriers. */
ALWAYS_INLINE int gcm_blocks(struct weft_crypt *s, const struct weft_key *key, __u32 at,
			     enum gcm_mode mode, const __u32 from)
{
	forget(at);
	if (at > GCM_ROOM - 128)
		return -1;
#pragma clang loop unroll(disable)
	for (__u32 i = from; i < GHASH_GROUP; i++) {
		struct ghash_block *text = GCM_BLOCK(s, zero, at + i * 16),
				   *stream = GCM_BLOCK(s, stream, at + i * 16);
		struct ghash_block b = *text;

		if (mode == GCM_SEAL) {
			b.l ^= stream->l;
			b.r ^= stream->r;
			*text = b;
		} else if (mode == GCM_OPEN) {
			text->l = b.l ^ stream->l;
			text->r = b.r ^ stream->r;
		}
		if (i == from) {
			b.l ^= s->hash.l;
			b.r ^= s->hash.r;
		}
		ghash_spread(b, s->sums[i]);
		barrier();
	}
#define SUM(p, sum, class)                                                                         \
	{                                                                                          \
		__u64 acc = 0;                                                                     \
		_Pragma("clang loop unroll(full)") for (__u32 i = from; i < GHASH_GROUP; i++)      \
		    acc ^=                                                                         \
		    (s->sums[i][w * GHASH_SUMS + sum] & CLASS##class) * key->h[i][w * 9 + p];      \
		s->products[p] = acc;                                                              \
		barrier();                                                                         \
	}
#pragma clang loop unroll(disable)
	for (__u32 w = 0; w < 6; w++) {
		GHASH_NINE(SUM)
		s->halves[w] = ghash_assemble(s->products, w & 1);
		barrier();
	}
#undef SUM
	s->hash = ghash_reduce((struct ghash_halves){s->halves[0], s->halves[1], s->halves[2],
						     s->halves[3], s->halves[4], s->halves[5]});
	return 0;
}

static __noinline int gcm_group(struct weft_crypt *s, const struct weft_key *key, __u32 at,
				enum gcm_mode mode)
{
	return gcm_blocks(s, key, at, mode, 0);
}

/* The first group of most packets, and the only one of a TCP acknowledgement: AAD, up to 64 bytes
 * of text, lengths. */
#define GCM_SHORT 2
static __noinline int gcm_short(struct weft_crypt *s, const struct weft_key *key, __u32 at,
				enum gcm_mode mode)
{
	return gcm_blocks(s, key, at, mode, GCM_SHORT);
}

/* Hashes AAD and text, and the length block that it writes behind them, into s->hash. */
ALWAYS_INLINE int gcm_pass(struct weft_crypt *s, const struct weft_key *key, __u32 len,
			   enum gcm_mode mode)
{
	__u32 n = (len + 15) >> 4, fill = -(n + 2) & (GHASH_GROUP - 1), i, at;
	int err;

	at = GCM_HEAD + n * 16;
	forget(at);
	if (at > GCM_ROOM - 128)
		return -1;
	*GCM_BLOCK(s, zero, at) = (struct ghash_block){bpf_cpu_to_be64((__u64)s->aad_len * 8),
						       bpf_cpu_to_be64((__u64)len * 8)};
	s->hash = (struct ghash_block){};
	at = (GHASH_GROUP - 1 - fill) * 16;
	err = fill < GCM_SHORT ? gcm_group(s, key, at, mode) : gcm_short(s, key, at, mode);
	if (err || n + 2 <= GHASH_GROUP)
		return err;
	bpf_for(i, 1, (n + 2 + fill) / GHASH_GROUP)
	{
		if (gcm_group(s, key, at + i * GHASH_GROUP * 16, mode))
			return -1;
	}
	return 0;
}

/* Takes the encrypted first counter block off the stream, and zeroes it there with what is left
 * over of key stream and counter blocks: the length block must be hashed as it is, and nothing is
 * to lie about. */
ALWAYS_INLINE int gcm_mask(struct weft_crypt *s, __u32 len)
{
	__u32 at = GCM_HEAD + ((len + 15) & ~15u);
	__u64 *rest;

	forget(at);
	if (at > GCM_ROOM - 128)
		return -1;
	s->mask = *GCM_BLOCK(s, stream, at);
	forget(len);
	if (len > MAX_TEXT)
		return -1;
	rest = (void *)s->stream + GCM_HEAD + len;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < 18; i++)
		rest[i] = 0;
	return 0;
}

/* Where the tag is: right behind the text. NULL if the text is too long. */
ALWAYS_INLINE struct ghash_block *gcm_tag(struct weft_crypt *s, __u32 len)
{
	forget(len);
	return len > MAX_TEXT ? NULL : (void *)s->text + len;
}

/* Overwrites what H could be computed from: hashes before they were encrypted, and products. */
ALWAYS_INLINE void gcm_wipe(struct weft_crypt *s)
{
	s->mask = (struct ghash_block){};
	s->hash = (struct ghash_block){};
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < 9; i++)
		s->products[i] = 0;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < 6; i++)
		s->halves[i] = 0;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i < 6 * GHASH_SUMS; i++)
		s->sums[0][i] = 0;
}

/* Encrypts s->text[0..len) in place and puts the tag behind it. */
ALWAYS_INLINE int gcm_seal(struct weft_crypt *s, struct bpf_crypto_ctx *cipher,
			   const struct weft_key *key, __u32 len)
{
	struct ghash_block *tag;

	if (gcm_stream(s, cipher, key->salt, (len + 15) >> 4) || gcm_mask(s, len))
		return -1;
	tag = gcm_tag(s, len);
	if (!tag)
		return -1;
	*tag = (struct ghash_block){};
	if (gcm_pass(s, key, len, GCM_SEAL))
		return -1;
	tag = gcm_tag(s, len);
	if (!tag)
		return -1;
	*tag = (struct ghash_block){s->hash.l ^ s->mask.l, s->hash.r ^ s->mask.r};
	gcm_wipe(s);
	return 0;
}

/* Decrypts s->text[0..len), which has the tag behind it, in place. Returns -1 if the tag is wrong,
 * in the same time wherever it differs; the text must not be used then. */
ALWAYS_INLINE int gcm_open(struct weft_crypt *s, struct bpf_crypto_ctx *cipher,
			   const struct weft_key *key, __u32 len)
{
	struct ghash_block *tag;
	__u64 differ;

	if (gcm_stream(s, cipher, key->salt, (len + 15) >> 4) || gcm_mask(s, len))
		return -1;
	tag = gcm_tag(s, len);
	if (!tag)
		return -1;
	s->tag = *tag;
	*tag = (struct ghash_block){};
	if (gcm_pass(s, key, len, GCM_OPEN))
		return -1;
	differ = (s->hash.l ^ s->mask.l ^ s->tag.l) | (s->hash.r ^ s->mask.r ^ s->tag.r);
	gcm_wipe(s);
	return differ ? -1 : 0;
}

#endif
