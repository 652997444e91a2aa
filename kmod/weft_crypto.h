/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of weft_crypto offer each other.
 *
 *   aead.c       AES-GCM by the kernel's crypto API
 *   selftest.c   known answers
 *   bpf_type.c   the way in for BPF programs: a type of bpf_crypto
 *   main.c       load and unload
 *
 * Only bpf_type.c knows how BPF programs reach the module. Kernels without bpf_crypto_register_type()
 * will want another file in its place, with kfuncs of our own, and nothing else changed.
 */
#ifndef WEFT_CRYPTO_H
#define WEFT_CRYPTO_H

#include <linux/types.h>

#define WEFT_NONCE_LEN	 12
#define WEFT_TAG_LEN	 16
#define WEFT_AAD_MAX_LEN 32

/* An AES-GCM key, and the length of the data that is authenticated with each message. */
struct weft_aead;

int weft_aead_init(void);
void weft_aead_exit(void);

/* Who does the work, for people: a driver's name as in /proc/crypto. */
const char *weft_aead_driver(void);

/* Sleeps. Returns an ERR_PTR on failure, as the rest of the kernel does. */
struct weft_aead *weft_aead_alloc(unsigned int aad_len);
/* Wipes the key. Does not sleep: the last user may be an RCU callback. */
void weft_aead_free(struct weft_aead *aead);
int weft_aead_setkey(struct weft_aead *aead, const u8 *key, unsigned int key_len);
unsigned int weft_aead_aad_len(const struct weft_aead *aead);

/*
 * Seal or open text_len bytes from src to dst, in place if they are the same, otherwise apart. The tag
 * follows the text: in dst when sealing, in src when opening. aad has the length that weft_aead_alloc()
 * was told. Callable from any context but hard interrupts.
 *
 * Returns 0; -EBADMSG if the tag is wrong: dst is garbage then, and must not be used; -EINVAL.
 */
int weft_aead_seal(struct weft_aead *aead, const u8 *src, u8 *dst, unsigned int text_len,
		   const u8 *nonce, const u8 *aad);
int weft_aead_open(struct weft_aead *aead, const u8 *src, u8 *dst, unsigned int text_len,
		   const u8 *nonce, const u8 *aad);

/*
 * For the self-test: work as where the FPU must not be used, though it may. Returns whether that makes
 * a difference to what runs.
 */
bool weft_aead_without_fpu(bool on);

int weft_selftest(void);

int weft_bpf_register(void);
void weft_bpf_unregister(void);

#endif
