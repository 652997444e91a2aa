/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef WEFT_MAPS_H
#define WEFT_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "flow_structs.h"

/* Names stay within 15 characters, the kernel's limit. The loader pins each under its name and a
 * hash of its layout, and sets the size of weft_flows4/6 and weft_cells4/6 from the configuration.
 */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_config);
} weft_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * WEFT_MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct weft_endpoint);
} weft_ep_if SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_ADDRS *WEFT_MAX_ENDPOINTS);
	__type(key, struct weft_addr_key);
	__type(value, struct weft_endpoint);
} weft_ep_addr SEC(".maps");

/* The endpoint of this node that has the address; NULL if none has. */
ALWAYS_INLINE struct weft_endpoint *endpoint_at(__u32 network, const union weft_addr *addr)
{
	struct weft_addr_key key = {.network = network, .addr = *addr};

	return bpf_map_lookup_elem(&weft_ep_addr, &key);
}

/* Whether the address is one of the endpoint's own. */
ALWAYS_INLINE int owns(const struct weft_endpoint *ep, const union weft_addr *addr)
{
	const struct weft_endpoint *at = endpoint_at(ep->network, addr);

	return at && at->born == ep->born && at->slot == ep->slot;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEFT_MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct weft_ep_slot);
} weft_ep_slot SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_ROUTES);
	__type(key, struct weft_route_key);
	__type(value, struct weft_route);
} weft_routes SEC(".maps");

#define ROUTE_KEY_BITS (32 + 128)

/* The most specific range that an address is in; NULL for addresses that are nobody's. */
ALWAYS_INLINE struct weft_route *route_in(__u32 network, const union weft_addr *addr)
{
	struct weft_route_key key = {.prefixlen = ROUTE_KEY_BITS, .network = network};

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return bpf_map_lookup_elem(&weft_routes, &key);
}

/* The same in the cluster's network, which the host's stack and the wire are in. */
ALWAYS_INLINE struct weft_route *route_of(const union weft_addr *addr)
{
	return route_in(NETWORK_CLUSTER, addr);
}

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_POLICY);
	__type(key, struct weft_policy_key);
	__type(value, struct weft_policy_entry);
} weft_policy SEC(".maps");

/* Only for packets from outside of this host, which no softirq of another packet interrupts. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_judgement);
} weft_judgement SEC(".maps");

/* The identities of other nodes' endpoints by their addresses. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_ADDR_IDS);
	__type(key, struct weft_addr_key);
	__type(value, __u32);
} weft_addr_ids SEC(".maps");

/* Which ranges of policies an address is in, as one number above all identities: its class. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_CLASSES);
	__type(key, struct weft_route_key);
	__type(value, __u32);
} weft_classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * WEFT_MAX_NODES);
	__type(key, __u32);
	__type(value, struct weft_nexthop);
} weft_nexthops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__type(key, struct weft_key4);
	__type(value, struct weft_flow);
} weft_flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__type(key, struct weft_key6);
	__type(value, struct weft_flow);
} weft_flows6 SEC(".maps");

/* The places of the flow tables, as many as those have entries: see cell.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 262144);
	__type(key, __u32);
	__type(value, struct weft_cell);
} weft_cells4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 262144);
	__type(key, __u32);
	__type(value, struct weft_cell);
} weft_cells6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEFT_MAX_OWNERS);
	__type(key, __u32);
	__type(value, struct weft_owner);
} weft_owners SEC(".maps");

/* The one link-local address that a chained pod has claimed besides the one of its MAC, and who has
 * claimed an address. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEFT_MAX_ENDPOINTS);
	__type(key, __u32);
	__type(value, struct weft_claim);
} weft_claims SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEFT_MAX_ENDPOINTS);
	__type(key, union weft_addr);
	__type(value, __u32);
} weft_claimed SEC(".maps");

/* The search for a cell: too large for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_search);
} weft_search SEC(".maps");

/* Which node has an address on the wire. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * WEFT_MAX_NODES);
	__type(key, union weft_addr);
	__type(value, __u32);
} weft_peer_addr SEC(".maps");

/* The identities that a node hosts, and the handle under which each travels through the host's
 * stack; 0 if there are more identities than handles. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_PEER_IDS);
	__type(key, struct weft_peer_id);
	__type(value, __u16);
} weft_peer_ids SEC(".maps");

/* The identity of each handle, 0 for handles not in use. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEFT_MAX_HANDLES);
	__type(key, __u32);
	__type(value, __u32);
} weft_handles SEC(".maps");

/* The interfaces that have an uplink's hooks, by index. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u8);
} weft_uplinks SEC(".maps");

/* Addresses that an EncryptionPolicy lets travel in cleartext. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_PLAIN);
	__type(key, struct weft_route_key);
	__type(value, __u8);
} weft_plain SEC(".maps");

/* Where a new flow is put together, and a cached decision held while it is used: too large for the
 * stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_flow);
} weft_scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, WEFT_MAX_FRAGMENTS);
	__type(key, struct weft_frag_key);
	__type(value, struct weft_frag);
} weft_frags SEC(".maps");

/* Index: slot << 4 | direction << 3 | verdict. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, WEFT_MAX_ENDPOINTS << 4);
	__type(key, __u32);
	__type(value, struct weft_counter);
} weft_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct weft_drop_key);
	__type(value, struct weft_counter);
} weft_drops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_event_stats);
} weft_evstats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, (WEFT_MAX_OWNERS + 1) * BUCKET_COUNT);
	__type(key, __u32);
	__type(value, struct weft_bucket);
} weft_buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} weft_events SEC(".maps");

/* Written only by the traced copies of the programs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weft_trace);
} weft_trace SEC(".maps");

#endif
