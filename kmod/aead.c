// SPDX-License-Identifier: GPL-2.0-only
/*
 * AES-GCM by the kernel's crypto API.
 *
 * XDP and TC want their answer at once, so nothing asynchronous will do. Up to some release AES-NI's GCM was
 * offered twice: as an asynchronous "gcm(aes)", and as what that one is made of, the internal "__gcm(aes)",
 * synchronous but usable only where the FPU is. So there are two: fast, asked for by that internal
 * name and used where crypto_simd_usable() says so, and safe, the best synchronous one, for the rest. On
 * kernels whose "gcm(aes)" is synchronous there is safe only, and it is the fast one.
 *
 * Why not the crypto library (<crypto/aes-gcm.h>, since 7.2 or so), which needs no requests and no lists: it
 * encrypts and hashes one after the other, and takes four times the instructions (docs/kernel-module.md).
 */
#include <asm/simd.h>
#include <crypto/aead.h>
#include <crypto/internal/simd.h>
#include <linux/bottom_half.h>
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "weft_crypto.h"

/* A packet of 9 KiB in vmalloc'ed memory lies on four pages; one more for the associated data. */
#define MAX_PIECES 5

struct weft_aead {
	struct crypto_aead *fast; /* NULL: there is no such thing here */
	struct crypto_aead *safe;
	unsigned int aad_len;
};

/*
 * What one operation needs besides the key. One for each CPU, not for each key: bottom halves are off while
 * it is used. Not per-CPU memory itself, because scatterlists need memory of the linear mapping.
 */
struct work {
	struct scatterlist src[MAX_PIECES], dst[MAX_PIECES];
	u8 aad[WEFT_AAD_MAX_LEN];
	u8 iv[16];
	struct aead_request req; /* last: the driver's context follows */
};

static struct work **works;
static unsigned int request_size; /* room for a driver's context in each of them */

/*
 * Found once, when the module is loaded and tested; keys are made for these by name, so that what runs is what
 * was tested.
 */
static char fast_driver[CRYPTO_MAX_ALG_NAME], safe_driver[CRYPTO_MAX_ALG_NAME];
static bool without_fpu;

static void free_works(void)
{
	int cpu;

	if (!works)
		return;
	for_each_possible_cpu(cpu)
		kfree_sensitive(works[cpu]);
	kfree(works);
	works = NULL;
}

static int alloc_works(void)
{
	int cpu;

	works = kcalloc(nr_cpu_ids, sizeof(*works), GFP_KERNEL);
	if (!works)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		works[cpu] = kzalloc_node(sizeof(struct work) + request_size, GFP_KERNEL,
					  cpu_to_node(cpu));
		if (!works[cpu]) {
			free_works();
			return -ENOMEM;
		}
	}
	return 0;
}

static const char *driver_of(struct crypto_aead *tfm)
{
	return crypto_tfm_alg_driver_name(crypto_aead_tfm(tfm));
}

static struct crypto_aead *alloc_safe(const char *name)
{
	return crypto_alloc_aead(name, 0, CRYPTO_ALG_ASYNC);
}

static struct crypto_aead *alloc_fast(const char *name)
{
	return crypto_alloc_aead(name, CRYPTO_ALG_INTERNAL, CRYPTO_ALG_INTERNAL | CRYPTO_ALG_ASYNC);
}

/* A driver of the same name may have been replaced since by one that wants more. */
static bool fits(struct crypto_aead *tfm)
{
	return !tfm || crypto_aead_reqsize(tfm) <= request_size;
}

int weft_aead_init(void)
{
	struct crypto_aead *fast, *safe;

	safe = alloc_safe("gcm(aes)");
	if (IS_ERR(safe))
		return PTR_ERR(safe);
	strscpy(safe_driver, driver_of(safe), sizeof(safe_driver));
	request_size = crypto_aead_reqsize(safe);
	crypto_free_aead(safe);

	fast = alloc_fast("__gcm(aes)");
	if (!IS_ERR(fast)) {
		strscpy(fast_driver, driver_of(fast), sizeof(fast_driver));
		request_size = max(request_size, crypto_aead_reqsize(fast));
		crypto_free_aead(fast);
	}
	return alloc_works();
}

void weft_aead_exit(void)
{
	free_works();
}

const char *weft_aead_driver(void)
{
	return fast_driver[0] ? fast_driver : safe_driver;
}

struct weft_aead *weft_aead_alloc(unsigned int aad_len)
{
	struct weft_aead *aead;
	int err;

	if (aad_len > WEFT_AAD_MAX_LEN)
		return ERR_PTR(-EINVAL);
	aead = kzalloc(sizeof(*aead), GFP_KERNEL);
	if (!aead)
		return ERR_PTR(-ENOMEM);
	aead->aad_len = aad_len;

	aead->safe = alloc_safe(safe_driver);
	if (IS_ERR(aead->safe)) {
		err = PTR_ERR(aead->safe);
		goto free_aead;
	}
	if (fast_driver[0]) {
		aead->fast = alloc_fast(fast_driver);
		if (IS_ERR(aead->fast)) {
			err = PTR_ERR(aead->fast);
			goto free_safe;
		}
	}
	if (fits(aead->fast) && fits(aead->safe))
		return aead;

	err = -EOPNOTSUPP;
	crypto_free_aead(aead->fast);
free_safe:
	crypto_free_aead(aead->safe);
free_aead:
	kfree(aead);
	return ERR_PTR(err);
}

void weft_aead_free(struct weft_aead *aead)
{
	/* crypto_free_aead() wipes what the driver made of the key. */
	crypto_free_aead(aead->fast);
	crypto_free_aead(aead->safe);
	kfree_sensitive(aead);
}

static int set_one(struct crypto_aead *tfm, const u8 *key, unsigned int key_len)
{
	int err;

	if (!tfm)
		return 0;
	err = crypto_aead_setauthsize(tfm, WEFT_TAG_LEN);
	return err ?: crypto_aead_setkey(tfm, key, key_len);
}

int weft_aead_setkey(struct weft_aead *aead, const u8 *key, unsigned int key_len)
{
	int err;

	err = set_one(aead->fast, key, key_len);
	return err ?: set_one(aead->safe, key, key_len);
}

unsigned int weft_aead_aad_len(const struct weft_aead *aead)
{
	return aead->aad_len;
}

/* Appends len bytes at p to the n pieces of sg; returns how many there are then. */
static int add_piece(struct scatterlist *sg, int n, const u8 *p, unsigned int len)
{
	unsigned int part;

	if (!is_vmalloc_addr(p)) {
		if (WARN_ON_ONCE(!virt_addr_valid(p)) || n == MAX_PIECES)
			return -EINVAL;
		sg_set_buf(&sg[n], p, len);
		return n + 1;
	}
	for (; len; len -= part, p += part) {
		if (n == MAX_PIECES)
			return -EINVAL;
		part = min_t(unsigned int, len, PAGE_SIZE - offset_in_page(p));
		sg_set_page(&sg[n++], vmalloc_to_page(p), part, offset_in_page(p));
	}
	return n;
}

static int list_pieces(struct scatterlist *sg, const struct work *work, unsigned int aad_len,
		       const u8 *p, unsigned int len)
{
	int n = 0;

	sg_init_table(sg, MAX_PIECES);
	if (aad_len)
		n = add_piece(sg, n, work->aad, aad_len);
	if (len)
		n = add_piece(sg, n, p, len);
	if (n <= 0)
		return -EINVAL;
	sg_mark_end(&sg[n - 1]);
	return 0;
}

/* With bottom halves off: works[] of this CPU is ours. */
static int crypt(struct weft_aead *aead, struct work *work, const u8 *src, u8 *dst,
		 unsigned int src_len, unsigned int dst_len, bool seal)
{
	bool use_fast = aead->fast && !without_fpu && crypto_simd_usable();
	struct aead_request *req = &work->req;
	struct scatterlist *to = work->src;
	int err;

	/* One list serves both ways in place, so it spans the longer of the two. */
	err = list_pieces(work->src, work, aead->aad_len, src,
			  src == dst ? max(src_len, dst_len) : src_len);
	if (!err && src != dst) {
		to = work->dst;
		err = list_pieces(work->dst, work, aead->aad_len, dst, dst_len);
	}
	if (err)
		return err;
	aead_request_set_tfm(req, use_fast ? aead->fast : aead->safe);
	aead_request_set_callback(req, 0, NULL, NULL); /* may not sleep */
	aead_request_set_ad(req, aead->aad_len);
	aead_request_set_crypt(req, work->src, to, src_len, work->iv);
	return seal ? crypto_aead_encrypt(req) : crypto_aead_decrypt(req);
}

static int run(struct weft_aead *aead, const u8 *src, u8 *dst, unsigned int src_len,
	       unsigned int dst_len, const u8 *nonce, const u8 *aad, bool seal)
{
	struct work *work;
	int err;

	local_bh_disable(); /* XDP and TC have that already */
	work = works[smp_processor_id()];
	memcpy(work->iv, nonce, WEFT_NONCE_LEN);
	memcpy(work->aad, aad, aead->aad_len);
	err = crypt(aead, work, src, dst, src_len, dst_len, seal);
	local_bh_enable();
	return err;
}

int weft_aead_seal(struct weft_aead *aead, const u8 *src, u8 *dst, unsigned int text_len,
		   const u8 *nonce, const u8 *aad)
{
	return run(aead, src, dst, text_len, text_len + WEFT_TAG_LEN, nonce, aad, true);
}

int weft_aead_open(struct weft_aead *aead, const u8 *src, u8 *dst, unsigned int text_len,
		   const u8 *nonce, const u8 *aad)
{
	return run(aead, src, dst, text_len + WEFT_TAG_LEN, text_len, nonce, aad, false);
}

bool weft_aead_without_fpu(bool on)
{
	without_fpu = on;
	return fast_driver[0];
}
