// SPDX-License-Identifier: GPL-2.0-only
/*
 * weft_crypto: AES-GCM for BPF programs, so that Weft's datapath seals and opens packets with the CPU's AES
 * instructions. It holds keys for as long as a program's context does, and knows nothing of packets.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/init.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/sysfs.h>

#include "weft_crypto.h"

static int show_driver(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%s\n", weft_aead_driver());
}

static const struct kernel_param_ops driver_ops = { .get = show_driver };
module_param_cb(driver, &driver_ops, NULL, 0444);
MODULE_PARM_DESC(driver, "what does AES-GCM on this machine (to be read, not set)");

static int __init weft_crypto_init(void)
{
	int err;

	err = weft_aead_init();
	if (err) {
		pr_err("no synchronous AES-GCM in this kernel: %d\n", err);
		return err;
	}
	err = weft_selftest();
	if (err)
		goto exit_aead;
	err = weft_bpf_register();
	if (err) {
		pr_err("register the bpf_crypto type \"aead\": %d\n", err);
		goto exit_aead;
	}
	pr_info("AES-GCM by %s, self-test passed\n", weft_aead_driver());
	return 0;

exit_aead:
	weft_aead_exit();
	return err;
}

static void __exit weft_crypto_exit(void)
{
	weft_bpf_unregister();
	weft_aead_exit();
}

module_init(weft_crypto_init);
module_exit(weft_crypto_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("AES-GCM for BPF programs (Weft)");
MODULE_VERSION("1.0");
/* Their algorithms are looked for once, at load: the fast ones have to be there by then. */
MODULE_SOFTDEP("pre: gcm ctr ghash_generic ghash-clmulni-intel aesni-intel");
