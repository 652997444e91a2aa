// SPDX-License-Identifier: GPL-2.0-only
/* Never loaded: makes the compiler describe (BTF) every type that user space shares with the
 * programs, for internal/gen to turn into Go. */
#include "lib/structs.h"
#include "lib/sa.h"
#include "lib/sealer_structs.h"

#define ABI(kind, name) const kind name *weft_abi_##name __attribute__((used))

ABI(struct, weft_config);
ABI(struct, weft_endpoint);
ABI(struct, weft_ep_slot);
ABI(struct, weft_addr_key);
ABI(struct, weft_policy_key);
ABI(struct, weft_policy_entry);
ABI(struct, weft_route_key);
ABI(struct, weft_route);
ABI(struct, weft_nexthop);
ABI(struct, weft_peer);
ABI(struct, weft_peer_id);
ABI(struct, weft_sa_head);
ABI(struct, weft_sa_out);
ABI(struct, weft_sa_in);
ABI(struct, weft_sa_used_key);
ABI(struct, weft_vm);
ABI(struct, weft_sealer_state);
ABI(struct, weft_sealer_queue);
ABI(struct, weft_sealer_share);
ABI(struct, weft_key4);
ABI(struct, weft_key6);
ABI(struct, weft_flow);
ABI(struct, weft_owner);
ABI(struct, weft_claim);
ABI(struct, weft_drop_key);
ABI(struct, weft_event);
ABI(struct, weft_event_stats);
ABI(struct, weft_source_filter);
ABI(struct, weft_trace);
ABI(enum, weft_hook);
ABI(enum, weft_verdict);
ABI(enum, weft_direction);
ABI(enum, weft_policy_set);
ABI(enum, weft_policy_verdict);
ABI(enum, weft_config_flag);
ABI(enum, weft_endpoint_flag);
ABI(enum, weft_nexthop_flag);
ABI(enum, weft_route_flag);
ABI(enum, weft_flow_flag);
ABI(enum, weft_flow_state);
ABI(enum, weft_event_type);
ABI(enum, weft_step);
ABI(enum, weft_engine);
ABI(enum, weft_sealer_kind);
ABI(enum, weft_sealer_refusal);
ABI(enum, weft_sealer_room);
ABI(enum, weft_sa_state);
ABI(enum, weft_identity);
ABI(enum, weft_tag);
