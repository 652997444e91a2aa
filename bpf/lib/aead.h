/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_AEAD_H
#define WEFT_AEAD_H

#include "gcm.h"

/* AES-256-GCM as RFC 4106 uses it, by the engine that the SA was made for.
 *
 * A packet's work is done between crypt_get and crypt_put. The caller fills the buffer's aad (12
 * bytes: SPI, sequence number with its upper half) and iv; the salt comes from the SA, which the
 * caller has looked up once for all that it does: an entry that was seen alive stays as it is until
 * the program ends (sa.h). */

#define ESP_AROUND 32 /* an ESP packet's bytes besides its text: SPI, sequence number, IV, tag */

#define EINVAL	22
#define EBADMSG 74
#define ENOKEY	126

/* Makes an skb's first len bytes linear and unshared: TCP keeps clones for retransmission. */
#ifdef WEFT_XDP
#define ctx_own(ctx, len) 1
#else
#define ctx_own(ctx, len) (!bpf_skb_pull_data(ctx, len))
#endif

/* The kernel's module does it where the packet lies: seals size bytes with the tag, or opens -size.
 * The packet must be linear, for an skb also its own. */
static __noinline int kmod_crypt(weft_ctx *ctx, struct weft_crypt *s, struct bpf_crypto_ctx *cipher,
				 __u32 off, __s32 size)
{
	int seal = size > 0, err = -EINVAL;
	struct bpf_dynptr packet, siv;

	if (!seal)
		size = -size;
	*(__u32 *)(s->siv + 4) = (__u32)s->iv;
	*(__u32 *)(s->siv + 8) = s->iv >> 32;
	*(__u32 *)(s->siv + 12) = *(__u32 *)s->aad;
	*(__u64 *)(s->siv + 16) = *(__u32 *)(s->aad + 4) | (__u64)(*(__u32 *)(s->aad + 8)) << 32;
	if (ctx_own(ctx, off + size) && !bpf_dynptr_from_mem(s->siv, 12 + ESP_AAD_LEN, 0, &siv) &&
	    !ctx_dynptr(ctx, &packet) && !bpf_dynptr_adjust(&packet, off, off + size)) {
		if (seal)
			err = bpf_crypto_encrypt(cipher, &packet, &packet, &siv);
		else
			err = bpf_crypto_decrypt(cipher, &packet, &packet, &siv);
	}
	*(__u32 *)s->siv = 0;
	return err;
}

/* Seals s->text[0..len), ESP trailer included, and writes ciphertext and 16 bytes of tag to the
 * packet at off, where there is room. */
static __noinline int aead_seal(weft_ctx *ctx, struct weft_sa_out *sa, __u32 off, __u32 len)
{
	struct weft_crypt *s = crypt_buffer();
	struct bpf_crypto_ctx *cipher;
	struct weft_key *key;

	if (!s || !len || len > MAX_TEXT || sa->head.state != SA_LIVE)
		return -EINVAL;
	cipher = sa->head.cipher;
	key = sa->head.key;
	if (!cipher || !key || !key->ready)
		return -ENOKEY;
	__sync_fetch_and_add(&sa->head.bytes, len + ESP_AROUND);
	if (sa->head.engine == ENGINE_BPF) {
		if (gcm_seal(s, cipher, key, len))
			return -EINVAL;
		len += 16;
	}
	if (outside(len, 1, MAX_TEXT + 16) || ctx_store(ctx, off, s->text, len))
		return -EINVAL;
	if (sa->head.engine == ENGINE_BPF)
		return 0;
	*(__u32 *)s->siv = key->salt;
	return kmod_crypt(ctx, s, cipher, off, len + 16);
}

/* The packet has len bytes of ciphertext at off and 16 of tag behind them. Leaves the plaintext in
 * their place, and only if the tag is right: 0, or -EBADMSG. */
static __noinline int aead_open(weft_ctx *ctx, struct weft_sa_in *sa, __u32 off, __u32 len)
{
	struct weft_crypt *s = crypt_buffer();
	struct bpf_crypto_ctx *cipher;
	struct weft_key *key;
	__u32 size = len + 16;

	if (!s || !len || len > MAX_TEXT || sa->head.state != SA_LIVE)
		return -EINVAL;
	cipher = sa->head.cipher;
	key = sa->head.key;
	if (!cipher || !key || !key->ready)
		return -ENOKEY;
	if (sa->head.engine == ENGINE_KMOD) {
		*(__u32 *)s->siv = key->salt;
		return kmod_crypt(ctx, s, cipher, off, -(__s32)size);
	}
	if (outside(size, 17, MAX_TEXT + 16) || ctx_load(ctx, off, s->text, size))
		return -EINVAL;
	if (gcm_open(s, cipher, key, len))
		return -EBADMSG;
	return outside(len, 1, MAX_TEXT) || ctx_store(ctx, off, s->text, len) ? -EINVAL : 0;
}

#endif
