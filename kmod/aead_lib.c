// SPDX-License-Identifier: GPL-2.0-only
/*
 * AES-GCM by the kernel's crypto library (<crypto/aes-gcm.h>): plain pointers, no requests, synchronous in
 * every context, and it falls back by itself where the FPU may not be used.
 */
#include "weft_crypto.h"

#ifdef WEFT_AEAD_LIB

#include <crypto/aes-gcm.h>
#include <linux/err.h>
#include <linux/slab.h>

struct weft_aead {
	unsigned int aad_len;
	struct aes_gcm_key key;
};

int weft_aead_init(void)
{
	return 0;
}

void weft_aead_exit(void)
{
}

const char *weft_aead_driver(void)
{
	return "library";
}

struct weft_aead *weft_aead_alloc(unsigned int aad_len)
{
	struct weft_aead *aead;

	if (aad_len > WEFT_AAD_MAX_LEN)
		return ERR_PTR(-EINVAL);
	aead = kzalloc(sizeof(*aead), GFP_KERNEL);
	if (!aead)
		return ERR_PTR(-ENOMEM);
	aead->aad_len = aad_len;
	return aead;
}

void weft_aead_free(struct weft_aead *aead)
{
	kfree_sensitive(aead);
}

int weft_aead_setkey(struct weft_aead *aead, const u8 *key, unsigned int key_len)
{
	return aes_gcm_preparekey(&aead->key, key, key_len, WEFT_TAG_LEN);
}

unsigned int weft_aead_aad_len(const struct weft_aead *aead)
{
	return aead->aad_len;
}

int weft_aead_seal(struct weft_aead *aead, const u8 *src, u8 *dst, unsigned int text_len,
		   const u8 *nonce, const u8 *aad)
{
	aes_gcm_encrypt(dst, src, text_len, dst + text_len, aad, aead->aad_len, nonce, &aead->key);
	return 0;
}

int weft_aead_open(struct weft_aead *aead, const u8 *src, u8 *dst, unsigned int text_len,
		   const u8 *nonce, const u8 *aad)
{
	return aes_gcm_decrypt(dst, src, text_len, src + text_len, aad, aead->aad_len, nonce,
			       &aead->key);
}

bool weft_aead_without_fpu(bool on)
{
	return false;
}

#endif /* WEFT_AEAD_LIB */
