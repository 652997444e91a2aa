// SPDX-License-Identifier: GPL-2.0-only
/*
 * The type "aead" of bpf_crypto: with it BPF programs do AES-GCM through the kernel's own kfuncs
 * bpf_crypto_encrypt() and bpf_crypto_decrypt(), and a program that uses them loads without this module too.
 *
 * What a program agrees to:
 *
 *   type       "aead"
 *   algo       "gcm(aes)/N": N, up to 32, bytes of associated data with every message; 12 for ESP with
 *              64-bit sequence numbers
 *   key_len    16, 24 or 32
 *   authsize   16
 *   siv        12 + N bytes: the nonce, then the associated data. The kernel wants it writable; it is not written
 *   src, dst   as long as each other; the last 16 bytes are the tag, or room for it. The same memory, or
 *              memory that does not overlap. Linear: a packet in fragments must be made linear first
 *   result     0; -EBADMSG when the tag is wrong, and dst is garbage then; -EINVAL
 */
#include <linux/types.h>
#include <linux/bpf_crypto.h>
#include <linux/crypto.h>
#include <linux/err.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "weft_crypto.h"

#define ALGO "gcm(aes)/"

struct bpf_aead {
	struct weft_aead *aead;
	bool has_tag_len, has_key;
};

static int parse_algo(const char *algo, unsigned int *aad_len)
{
	if (strncmp(algo, ALGO, strlen(ALGO)))
		return -ENOENT;
	if (kstrtouint(algo + strlen(ALGO), 10, aad_len) || *aad_len > WEFT_AAD_MAX_LEN)
		return -EINVAL;
	return 0;
}

static int bpf_aead_has_algo(const char *algo)
{
	unsigned int aad_len;

	return !parse_algo(algo, &aad_len);
}

static void *bpf_aead_alloc(const char *algo)
{
	struct bpf_aead *t;
	unsigned int aad_len;
	int err;

	err = parse_algo(algo, &aad_len);
	if (err)
		return ERR_PTR(err);
	t = kzalloc(sizeof(*t), GFP_KERNEL);
	if (!t)
		return ERR_PTR(-ENOMEM);
	t->aead = weft_aead_alloc(aad_len);
	if (IS_ERR(t->aead)) {
		err = PTR_ERR(t->aead);
		kfree(t);
		return ERR_PTR(err);
	}
	return t;
}

static void bpf_aead_free(void *tfm)
{
	struct bpf_aead *t = tfm;

	weft_aead_free(t->aead);
	kfree(t);
}

/* bpf_crypto sets the length of the tag before the key, and not at all if the program asked for none. */
static int bpf_aead_setauthsize(void *tfm, unsigned int authsize)
{
	struct bpf_aead *t = tfm;

	if (authsize != WEFT_TAG_LEN)
		return -EINVAL;
	t->has_tag_len = true;
	return 0;
}

static int bpf_aead_setkey(void *tfm, const u8 *key, unsigned int key_len)
{
	struct bpf_aead *t = tfm;
	int err;

	if (!t->has_tag_len)
		return -EINVAL;
	err = weft_aead_setkey(t->aead, key, key_len);
	t->has_key = !err;
	return err;
}

static u32 bpf_aead_flags(void *tfm)
{
	struct bpf_aead *t = tfm;

	return t->has_key ? 0 : CRYPTO_TFM_NEED_KEY;
}

static unsigned int bpf_aead_ivsize(void *tfm)
{
	return WEFT_NONCE_LEN;
}

/* bpf_crypto makes sure that siv is exactly ivsize + statesize long. */
static unsigned int bpf_aead_statesize(void *tfm)
{
	struct bpf_aead *t = tfm;

	return weft_aead_aad_len(t->aead);
}

static bool bad_buffers(const u8 *src, const u8 *dst, unsigned int len)
{
	if (len < WEFT_TAG_LEN)
		return true;
	return src != dst && src < dst + len && dst < src + len;
}

static int bpf_aead_encrypt(void *tfm, const u8 *src, u8 *dst, unsigned int len, u8 *siv)
{
	struct bpf_aead *t = tfm;

	if (bad_buffers(src, dst, len))
		return -EINVAL;
	return weft_aead_seal(t->aead, src, dst, len - WEFT_TAG_LEN, siv, siv + WEFT_NONCE_LEN);
}

static int bpf_aead_decrypt(void *tfm, const u8 *src, u8 *dst, unsigned int len, u8 *siv)
{
	struct bpf_aead *t = tfm;

	if (bad_buffers(src, dst, len))
		return -EINVAL;
	return weft_aead_open(t->aead, src, dst, len - WEFT_TAG_LEN, siv, siv + WEFT_NONCE_LEN);
}

static const struct bpf_crypto_type bpf_aead_type = {
	.alloc_tfm	= bpf_aead_alloc,
	.free_tfm	= bpf_aead_free,
	.has_algo	= bpf_aead_has_algo,
	.setkey		= bpf_aead_setkey,
	.setauthsize	= bpf_aead_setauthsize,
	.encrypt	= bpf_aead_encrypt,
	.decrypt	= bpf_aead_decrypt,
	.ivsize		= bpf_aead_ivsize,
	.statesize	= bpf_aead_statesize,
	.get_flags	= bpf_aead_flags,
	.owner		= THIS_MODULE, /* every context holds the module */
	.name		= "aead",
};

int weft_bpf_register(void)
{
	return bpf_crypto_register_type(&bpf_aead_type);
}

void weft_bpf_unregister(void)
{
	WARN_ON_ONCE(bpf_crypto_unregister_type(&bpf_aead_type));
}
