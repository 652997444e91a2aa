/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_ESP_H
#define WEFT_ESP_H

#include "aead.h"
#include "events.h"
#include "exempt.h"
#include "headers.h"
#include "replay.h"
#include "skb.h"

/* ESP (RFC 4303) in UDP (RFC 3948), tunnel mode, AES-GCM (RFC 4106), 64-bit sequence numbers:
 *
 *   Ethernet | IP | UDP | SPI | sequence, low half | IV | inner packet, padding, its length, next
 * header | ICV
 *
 * Nothing of ours is on the wire: an IPsec stack with the key reads it. */

#define ESP_HEAD_LEN  16 /* SPI, sequence number, IV */
#define ESP_ICV_LEN   16
#define UDP_LEN	      8
#define ESP_TEXT_MIN  (IP4_LEN + 4)
#define ESP_PORT_BASE 0xc000 /* source ports: RFC 6335's dynamic range, by the flow's hash */

/* SPI: epoch in 4 bits, lane in 6, identity in 22. */
#define SPI_EPOCH(spi)	  ((spi) >> 28)
#define SPI_LANE(spi)	  (((spi) >> 22) & 0x3f)
#define SPI_IDENTITY(spi) ((spi) & 0x3fffff)

struct weft_esp {
	__be32 spi;
	__be32 seq;
	__be64 iv;
};

/* A packet between the steps of its sealing or opening. Guarded by the crypt buffer's flag, since
 * it has that one's lifetime. Here and not on the stack, and in steps that the hook's program calls
 * one after another, because all calls that are open at once share 512 bytes of stack, and the
 * cipher needs most of them. */
struct weft_job {
	__u64 seq;
	__u32 id;   /* of the SA */
	__u32 text; /* where it begins in the frame */
	__u32 len;  /* of it, bytes, without the ICV */
	__u32 udp;  /* bytes of UDP, its header included */
	__u32 at;   /* where the UDP header is */
	__u8 family;
	__u8 fragment;
	__u8 ecn;
	__u8 pad;
	struct weft_esp esp;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_job);
} weft_job SEC(".maps");

ALWAYS_INLINE struct weft_job *job_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&weft_job, &zero);
}

struct weft_aad {
	__be32 spi;
	__be32 seq_hi;
	__be32 seq_lo;
};

/* What the tag protects besides the text (RFC 4106 section 5), and the nonce's part that is sent.
 */
ALWAYS_INLINE void esp_bind(struct weft_crypt *s, const struct weft_esp *esp, __u64 seq)
{
	struct weft_aad *aad = (void *)s->aad;

	aad->spi = esp->spi;
	aad->seq_hi = bpf_htonl(seq >> 32);
	aad->seq_lo = esp->seq;
	s->iv = esp->iv;
}

ALWAYS_INLINE __u32 outer_len(__u32 family)
{
	return (family == 4 ? IP4_LEN : IP6_LEN) + UDP_LEN + ESP_HEAD_LEN;
}

ALWAYS_INLINE __be16 ethertype_of(__u32 family)
{
	return family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
}

ALWAYS_INLINE const struct weft_peer *peer_of(__u32 node)
{
	return bpf_map_lookup_elem(&weft_peers, &node);
}

#endif
