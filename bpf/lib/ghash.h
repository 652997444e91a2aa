/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_GHASH_H
#define WEFT_GHASH_H

#include "ctx.h"

/* GHASH (NIST SP 800-38D) in constant time: integer multiplications and masks, no table that data
 * or key choose an entry of.
 *
 * A carry-less product of 64-bit words comes from integer products of words that keep every fourth
 * bit only, so that sums of up to 15 do not run into the next bit that counts. The four such
 * classes of a word are its "phases": x = x0 + x1·T + x2·T² + x3·T³, and two levels of Karatsuba
 * take 9 products instead of 16. An integer product keeps 64 bits only: the low half; the high half
 * is the low half of the product of the words written backwards. GCM writes its bits backwards,
 * nibble by nibble and within each, so both orders are at hand: "forward" has the nibble of the
 * lowest powers lowest, "backward" is the big-endian word. In both, bit 3 of a nibble has the
 * lowest power of its four.
 *
 * Three products of 64-bit words (Karatsuba again) make one of 128 bits: 3 × 2 × 9 = 54 integer
 * products. A group of blocks is multiplied by as many powers of H; the raw products are added up
 * (XOR; the bits that do not count are masked once for the group) and reduced once. */

#define GHASH_GROUP    8
#define GHASH_PRODUCTS 54

/* What makes up the key of an SA besides the AES key. h[i] belongs to the group's block i: the
 * products' other factors, made from H to the power of GHASH_GROUP - i. */
struct weft_key {
	__u64 h[GHASH_GROUP][GHASH_PRODUCTS];
	__u32 salt;
	__u32 ready;
};

#define CLASS0 0x1111111111111111ULL
#define CLASS1 0x2222222222222222ULL
#define CLASS2 0x4444444444444444ULL
#define CLASS3 0x8888888888888888ULL
#define NIBBLE 0x0f0f0f0f0f0f0f0fULL

/* The two halves of a block as they lie in memory, read by a little-endian machine. */
struct ghash_block {
	__u64 l, r;
};

/* Swaps the nibbles of each byte: from a word as it lies in memory to the forward order. */
ALWAYS_INLINE __u64 nibbles(__u64 x) { return ((x >> 4) & NIBBLE) | ((x & NIBBLE) << 4); }

ALWAYS_INLINE __u64 to_backward(__u64 x) { return bpf_be64_to_cpu(x); }

/* Sums of phases: w itself, neighbours (c0+c1, c2+c3), those two apart (c0+c2, c1+c3), all. */
#define GHASH_SUMS 4
ALWAYS_INLINE void ghash_sums(__u64 w, __u64 *sums)
{
	__u64 u = w ^ (w >> 1);

	sums[0] = w;
	sums[1] = u;
	sums[2] = w ^ (w >> 2);
	sums[3] = u ^ (u >> 2);
}

/* The nine products, as PRODUCT(number, which sum, class). */
#define GHASH_NINE(PRODUCT)                                                                        \
	PRODUCT(0, 0, 0)                                                                           \
	PRODUCT(1, 0, 1)                                                                           \
	PRODUCT(2, 1, 0)                                                                           \
	PRODUCT(3, 0, 2)                                                                           \
	PRODUCT(4, 0, 3)                                                                           \
	PRODUCT(5, 1, 2)                                                                           \
	PRODUCT(6, 2, 0)                                                                           \
	PRODUCT(7, 2, 1)                                                                           \
	PRODUCT(8, 3, 0)

/* One word's half of a carry-less product, from its nine sums of integer products. What it returns
 * is in the order of its factors. */
ALWAYS_INLINE __u64 ghash_assemble(const __u64 *acc, int backward)
{
	__u64 p0 = acc[0] & CLASS0, p1 = (acc[1] & CLASS1) >> 1, p2 = acc[2] & CLASS0;
	__u64 p3 = (acc[3] & CLASS2) >> 2, p4 = (acc[4] & CLASS3) >> 3, p5 = (acc[5] & CLASS2) >> 2;
	__u64 p6 = acc[6] & CLASS0, p7 = (acc[7] & CLASS1) >> 1, p8 = acc[8] & CLASS0;
	__u64 e1 = p2 ^ p0 ^ p1, e5 = p5 ^ p3 ^ p4;
	__u64 e2 = p1 ^ p6 ^ p0 ^ p3, e4 = p7 ^ p1 ^ p4 ^ p3;
	__u64 e3 = p8 ^ p6 ^ p7 ^ e1 ^ e5;
	__u64 same = e3 | e4 << 1 | e5 << 2 | p4 << 3, next = p0 << 1 | e1 << 2 | e2 << 3;

	return backward ? same << 4 ^ next : same ^ next << 4;
}

/* The halves of the three 128-bit products: left × left, right × right, sums × sums; each forward
 * (low) and backward (high). */
struct ghash_halves {
	__u64 lf, lb, rf, rb, mf, mb;
};

/* To the field element, as its halves lie in memory. */
ALWAYS_INLINE struct ghash_block ghash_reduce(struct ghash_halves p)
{
	__u64 d0 = to_backward(nibbles(p.lf)), d1 = p.lb ^ to_backward(nibbles(p.mf ^ p.lf ^ p.rf));
	__u64 d2 = to_backward(nibbles(p.rf)) ^ p.mb ^ p.lb ^ p.rb, d3 = p.rb;

	/* t^128 = t^7 + t^2 + t + 1; a power more is a bit to the right. */
	d1 ^= d3 ^ d3 >> 1 ^ d3 >> 2 ^ d3 >> 7;
	d2 ^= d3 << 63 ^ d3 << 62 ^ d3 << 57;
	d0 ^= d2 ^ d2 >> 1 ^ d2 >> 2 ^ d2 >> 7;
	d1 ^= d2 << 63 ^ d2 << 62 ^ d2 << 57;
	return (struct ghash_block){bpf_cpu_to_be64(d0), bpf_cpu_to_be64(d1)};
}

/* The sums of phases of a block's six words: left, right and their sum, each forward and backward.
 */
ALWAYS_INLINE void ghash_spread(struct ghash_block b, __u64 *sums)
{
	__u64 lf = nibbles(b.l), lb = to_backward(b.l), rf = nibbles(b.r), rb = to_backward(b.r);

	ghash_sums(lf, sums);
	ghash_sums(lb, sums + 4);
	ghash_sums(rf, sums + 8);
	ghash_sums(rb, sums + 12);
	ghash_sums(lf ^ rf, sums + 16);
	ghash_sums(lb ^ rb, sums + 20);
}

/* The other factors for a word of H's power. */
ALWAYS_INLINE void ghash_factors(__u64 word, __u64 *factors)
{
	__u64 sums[GHASH_SUMS];

	ghash_sums(word, sums);
#define FACTOR(p, sum, class) factors[p] = (sums[sum] >> class) & CLASS0;
	GHASH_NINE(FACTOR)
#undef FACTOR
}

/* Half of the product of a word and one whose factors are given. A function, for the stack's sake;
 * most programs have no use for it. */
static __noinline __attribute__((unused)) __u64 ghash_half(__u64 word, const __u64 *factors,
							   int backward)
{
	__u64 sums[GHASH_SUMS], acc[9];

	ghash_sums(word, sums);
#define MULTIPLY(p, sum, class) acc[p] = (sums[sum] & CLASS##class) * factors[p];
	GHASH_NINE(MULTIPLY)
#undef MULTIPLY
	return ghash_assemble(acc, backward);
}

/* b × H, where key->h's last entry is made already. */
ALWAYS_INLINE struct ghash_block ghash_multiply(struct ghash_block b, const struct weft_key *key)
{
	__u64 lf = nibbles(b.l), lb = to_backward(b.l), rf = nibbles(b.r), rb = to_backward(b.r);
	const __u64 *h = key->h[GHASH_GROUP - 1];

	return ghash_reduce((struct ghash_halves){
	    ghash_half(lf, h, 0),
	    ghash_half(lb, h + 9, 1),
	    ghash_half(rf, h + 18, 0),
	    ghash_half(rb, h + 27, 1),
	    ghash_half(lf ^ rf, h + 36, 0),
	    ghash_half(lb ^ rb, h + 45, 1),
	});
}

/* Fills one power of H in. */
ALWAYS_INLINE void ghash_set_power(struct weft_key *key, int i, struct ghash_block b)
{
	__u64 lf = nibbles(b.l), lb = to_backward(b.l), rf = nibbles(b.r), rb = to_backward(b.r);

	ghash_factors(lf, key->h[i]);
	ghash_factors(lb, key->h[i] + 9);
	ghash_factors(rf, key->h[i] + 18);
	ghash_factors(rb, key->h[i] + 27);
	ghash_factors(lf ^ rf, key->h[i] + 36);
	ghash_factors(lb ^ rb, key->h[i] + 45);
}

#endif
