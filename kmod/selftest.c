// SPDX-License-Identifier: GPL-2.0-only
/*
 * Known answers, checked before the module offers anything: one published by others, and tags that another
 * implementation (Go's crypto/cipher) made, for every length at which an implementation may take another path.
 * What cannot seal and open these is not let loose on packets.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/err.h>
#include <linux/printk.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include "weft_crypto.h"

#define AAD_LEN	 12 /* ESP with 64-bit sequence numbers */
#define MAX_TEXT 9000

/* 1 makes every answer wrong: a module built so must refuse to load, which test/kernels sees to. */
#ifndef WEFT_SELFTEST_FAULT
#define WEFT_SELFTEST_FAULT 0
#endif

/* Test case 16 of McGrew and Viega, "The Galois/Counter Mode of Operation". */
static const u8 published_key[32] __initconst =
	"\xfe\xff\xe9\x92\x86\x65\x73\x1c\x6d\x6a\x8f\x94\x67\x30\x83\x08"
	"\xfe\xff\xe9\x92\x86\x65\x73\x1c\x6d\x6a\x8f\x94\x67\x30\x83\x08";
static const u8 published_nonce[WEFT_NONCE_LEN] __initconst =
	"\xca\xfe\xba\xbe\xfa\xce\xdb\xad\xde\xca\xf8\x88";
static const u8 published_aad[20] __initconst =
	"\xfe\xed\xfa\xce\xde\xad\xbe\xef\xfe\xed\xfa\xce\xde\xad\xbe\xef"
	"\xab\xad\xda\xd2";
static const u8 published_text[60] __initconst =
	"\xd9\x31\x32\x25\xf8\x84\x06\xe5\xa5\x59\x09\xc5\xaf\xf5\x26\x9a"
	"\x86\xa7\xa9\x53\x15\x34\xf7\xda\x2e\x4c\x30\x3d\x8a\x31\x8a\x72"
	"\x1c\x3c\x0c\x95\x95\x68\x09\x53\x2f\xcf\x0e\x24\x49\xa6\xb5\x25"
	"\xb1\x6a\xed\xf5\xaa\x0d\xe6\x57\xba\x63\x7b\x39";
static const u8 published_sealed[60 + WEFT_TAG_LEN] __initconst =
	"\x52\x2d\xc1\xf0\x99\x56\x7d\x07\xf4\x7f\x37\xa3\x2a\x84\x42\x7d"
	"\x64\x3a\x8c\xdc\xbf\xe5\xc0\xc9\x75\x98\xa2\xbd\x25\x55\xd1\xaa"
	"\x8c\xb0\x8e\x48\x59\x0d\xbb\x3d\xa7\xb0\x8b\x10\x56\x82\x88\x38"
	"\xc5\xf6\x1e\x63\x93\xba\x7a\x0a\xbc\xc9\xf6\x62\x76\xfc\x6e\xce"
	"\x0f\x4e\x17\x68\xcd\xdf\x88\x53\xbb\x2d\x55\x1b";

/*
 * Key, nonce, associated data and text of these are patterns: 0x00 0x01 …, 0xc0 0xc1 …, 0xa0 0xa1 … and
 * 7 * i + i / 256. The tag stands for the sealed text, which it is made of.
 */
static const struct answer {
	u16 key_len, text_len;
	u8 tag[WEFT_TAG_LEN];
} answers[] __initconst = {
	{ 32, 0, "\x56\x1a\xb3\x21\xa0\xc3\x86\x35\x8c\xd1\x4e\x25\xa3\x6e\x8b\x7a" },
	{ 32, 1, "\xe1\x1a\xc0\x94\xd9\xfd\x16\x4a\x77\x02\xbd\x0b\x8f\xa1\xe2\xb6" },
	{ 32, 15, "\x0c\xcb\x70\xda\xd8\x2d\x62\x79\x5d\xa7\x36\xea\x00\xe1\xc6\x3a" },
	{ 32, 16, "\x39\xf2\x68\x74\x53\x52\xb1\xda\xc7\x25\x4d\x92\xef\xc1\x26\x66" },
	{ 32, 17, "\x05\xf5\x13\x32\x50\x8a\x64\x55\x03\x39\x9e\x5d\x21\x7c\x59\x02" },
	{ 32, 47, "\x3d\x0e\xc7\x68\xbf\x26\x90\x4c\xe1\xcd\x75\x39\x8e\x12\xd9\x8e" },
	{ 32, 64, "\x47\x3c\x1c\x49\x01\xfe\x3e\xfb\x2d\x8c\x24\xdd\x47\x24\x38\x14" },
	{ 32, 127, "\xe4\x6d\xa7\x79\x63\x82\x23\xd6\xdd\xa1\xe2\xdb\x0f\x36\x60\x8e" },
	{ 32, 128, "\x0b\xb2\x32\x1a\x1d\x2b\xc4\x91\x53\x47\x26\xe1\xb0\x01\xa5\x83" },
	{ 32, 129, "\xef\xd8\xa9\x27\x98\xa6\xa1\x80\xe2\x6b\x43\x32\xeb\xb8\x45\x2a" },
	{ 32, 255, "\xb2\x48\x56\xf5\x46\x0d\x4a\x16\x47\xbf\x00\x97\xd7\xda\xdd\x8e" },
	{ 32, 257, "\x6a\xdc\xb1\x89\x92\xfc\xb3\x94\xd6\x5f\xb8\xef\xf1\xb1\xb9\x5c" },
	{ 32, 512, "\xcc\xcf\x00\x85\xcb\xcb\x6f\x50\x72\xdf\x4e\x6f\x60\xa3\x48\xf3" },
	{ 32, 1023, "\xfe\xaf\x6e\x19\x84\x0d\xae\x60\x21\xc5\x53\xe7\x3b\xe2\xac\x6c" },
	{ 32, 1400, "\xeb\x17\x1c\x3b\xee\x86\xcf\xbb\x05\x66\xdb\x52\x7d\x8e\x88\x5e" },
	{ 32, 1500, "\xf6\xef\xa4\x74\xb5\xc8\x35\x19\x80\xfb\x51\x33\xf9\xf4\x03\x64" },
	{ 32, 9000, "\x72\xfb\x3a\xf6\x35\xae\xc7\xbd\x7b\x65\xaa\x86\x34\xa6\x73\xe0" },
	{ 24, 1400, "\xae\x76\x92\x1e\x3c\xa7\x38\xda\x57\x9e\xfe\xb3\xdb\x81\xa4\x1e" },
	{ 16, 1400, "\xeb\x52\x70\x83\xa7\x00\xa9\x72\x8f\xf7\x18\x46\xc2\x45\xef\xee" },
};

struct bench {
	u8 *plain, *src, *dst; /* MAX_TEXT and a tag each */
	const char *how;       /* said when something is wrong */
};

static int __init wrong(const struct bench *b, unsigned int len, const char *what)
{
	pr_err("self-test: %s with %s, %s, %u bytes: the module is not loaded\n", what,
	       weft_aead_driver(), b->how, len);
	return -EBADMSG;
}

/* One changed bit, in turn in text, tag and associated data: each must be refused. */
static int __init check_refusals(struct bench *b, struct weft_aead *aead, unsigned int len,
				 const u8 *nonce, u8 *aad)
{
	u8 *const bits[] = { b->src, b->src + len / 2, b->src + len, b->src + len + WEFT_TAG_LEN - 1,
			     aad, aad + AAD_LEN - 1 };
	int i, err;

	for (i = 0; i < ARRAY_SIZE(bits); i++) {
		*bits[i] ^= 0x10;
		err = weft_aead_open(aead, b->src, b->dst, len, nonce, aad);
		*bits[i] ^= 0x10;
		if (err != -EBADMSG)
			return wrong(b, len, "a forgery was opened");
	}
	return 0;
}

static int __init check_answer(struct bench *b, struct weft_aead *aead, const struct answer *a,
			       const u8 *nonce, u8 *aad)
{
	unsigned int len = a->text_len;

	memcpy(b->src, b->plain, len);
	if (weft_aead_seal(aead, b->src, b->src, len, nonce, aad) ||
	    memcmp(b->src + len, a->tag, WEFT_TAG_LEN))
		return wrong(b, len, "sealing in place");
	if (weft_aead_seal(aead, b->plain, b->dst, len, nonce, aad) ||
	    memcmp(b->dst, b->src, len + WEFT_TAG_LEN))
		return wrong(b, len, "sealing");
	memset(b->dst, 0, len);
	if (weft_aead_open(aead, b->src, b->dst, len, nonce, aad) || memcmp(b->dst, b->plain, len))
		return wrong(b, len, "opening");
	if (check_refusals(b, aead, len, nonce, aad))
		return -EBADMSG;
	if (weft_aead_open(aead, b->src, b->src, len, nonce, aad) || memcmp(b->src, b->plain, len))
		return wrong(b, len, "opening in place");
	return 0;
}

static int __init check_answers(struct bench *b, unsigned int key_len)
{
	u8 key[32], nonce[WEFT_NONCE_LEN], aad[AAD_LEN];
	struct weft_aead *aead;
	int i, err;

	for (i = 0; i < sizeof(key); i++)
		key[i] = i ^ WEFT_SELFTEST_FAULT;
	for (i = 0; i < AAD_LEN; i++) {
		nonce[i] = 0xc0 + i;
		aad[i] = 0xa0 + i;
	}
	aead = weft_aead_alloc(AAD_LEN);
	if (IS_ERR(aead))
		return PTR_ERR(aead);
	err = weft_aead_setkey(aead, key, key_len);
	for (i = 0; !err && i < ARRAY_SIZE(answers); i++)
		if (answers[i].key_len == key_len)
			err = check_answer(b, aead, &answers[i], nonce, aad);
	weft_aead_free(aead);
	return err;
}

static int __init check_published(struct bench *b)
{
	const unsigned int len = sizeof(published_text);
	struct weft_aead *aead;
	int err;

	aead = weft_aead_alloc(sizeof(published_aad));
	if (IS_ERR(aead))
		return PTR_ERR(aead);
	memcpy(b->src, published_text, len);
	err = weft_aead_setkey(aead, published_key, sizeof(published_key));
	err = err ?: weft_aead_seal(aead, b->src, b->src, len, published_nonce, published_aad);
	if (err || memcmp(b->src, published_sealed, sizeof(published_sealed)))
		err = wrong(b, len, "the published answer");
	weft_aead_free(aead);
	return err;
}

/* Key lengths that AES does not have, and more associated data than there is room for. */
static int __init check_limits(struct bench *b)
{
	static const unsigned int lengths[] __initconst = { 0, 15, 17, 31, 33 };
	struct weft_aead *aead;
	int i, err = 0;

	aead = weft_aead_alloc(WEFT_AAD_MAX_LEN + 1);
	if (!IS_ERR(aead)) {
		weft_aead_free(aead);
		return wrong(b, WEFT_AAD_MAX_LEN + 1, "too much associated data");
	}
	aead = weft_aead_alloc(AAD_LEN);
	if (IS_ERR(aead))
		return PTR_ERR(aead);
	for (i = 0; !err && i < ARRAY_SIZE(lengths); i++)
		if (!weft_aead_setkey(aead, b->plain, lengths[i]))
			err = wrong(b, lengths[i], "a key of that length");
	weft_aead_free(aead);
	return err;
}

static int __init check_all(struct bench *b)
{
	int err;

	err = check_published(b);
	err = err ?: check_answers(b, 32);
	err = err ?: check_answers(b, 24);
	err = err ?: check_answers(b, 16);
	return err ?: check_limits(b);
}

/* Packets are kmalloc'ed or whole pages, values of BPF maps often vmalloc'ed: both must do. */
static int __init check_memory(bool vmalloced, const char *how)
{
	const size_t size = MAX_TEXT + WEFT_TAG_LEN;
	struct bench b = { .how = how };
	u8 *memory;
	int i, err;

	memory = vmalloced ? vmalloc(3 * size) : kmalloc(3 * size, GFP_KERNEL);
	if (!memory)
		return -ENOMEM;
	b.plain = memory;
	b.src = memory + size;
	b.dst = memory + 2 * size;
	for (i = 0; i < MAX_TEXT; i++)
		b.plain[i] = 7 * i + i / 256;
	err = check_all(&b);
	kvfree(memory);
	return err;
}

int __init weft_selftest(void)
{
	int err;

	err = check_memory(false, "kmalloc");
	err = err ?: check_memory(true, "vmalloc");
	if (!err && weft_aead_without_fpu(true))
		err = check_memory(false, "no FPU");
	weft_aead_without_fpu(false);
	return err;
}
