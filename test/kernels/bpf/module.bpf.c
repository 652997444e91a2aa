// SPDX-License-Identifier: GPL-2.0-only
/* For ../module_test.go: calls the module through bpf_crypto with whatever lengths the test wants, good or bad.
 */
#include "../../../bpf/lib/kfuncs.h"

struct request {
	struct bpf_crypto_params params;
	int result;
};

struct slot {
	struct bpf_crypto_ctx __kptr *cipher;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/* Where in the frame things are. */
struct area {
	__u32 from, to;
};
struct area siv, src, dst;
__u32 seal, open;
int result;

/* Puts a new cipher in the slot, or empties it if the request names none. */
SEC("syscall")
int create(struct request *r)
{
	__u32 zero = 0;
	struct slot *slot = bpf_map_lookup_elem(&slots, &zero);
	struct bpf_crypto_ctx *cipher = NULL;
	int err = 0;

	if (!slot)
		return 1;
	if (r->params.type[0]) {
		cipher = bpf_crypto_ctx_create(&r->params, sizeof(r->params), &err);
		if (!cipher) {
			r->result = err;
			return 0;
		}
	}
	cipher = bpf_kptr_xchg(&slot->cipher, cipher);
	if (cipher)
		bpf_crypto_ctx_release(cipher);
	r->result = 0;
	return 0;
}

ALWAYS_INLINE int part(struct xdp_md *ctx, const struct area *area, struct bpf_dynptr *p)
{
	return bpf_dynptr_from_xdp(ctx, 0, p) || bpf_dynptr_adjust(p, area->from, area->to);
}

SEC("xdp")
int crypt(struct xdp_md *ctx)
{
	struct bpf_dynptr s, d, v;
	struct bpf_crypto_ctx *cipher;
	struct slot *slot;
	__u32 zero = 0;

	slot = bpf_map_lookup_elem(&slots, &zero);
	if (!slot || part(ctx, &src, &s) || part(ctx, &dst, &d) || part(ctx, &siv, &v))
		return XDP_ABORTED;
	cipher = slot->cipher;
	if (!cipher)
		return XDP_ABORTED;
	result = 0;
	if (seal)
		result = bpf_crypto_encrypt(cipher, &s, &d, &v);
	if (open && !result)
		result = bpf_crypto_decrypt(cipher, &s, &d, &v);
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
