// SPDX-License-Identifier: GPL-2.0-only
/* What the agent cannot do to the flow table by itself, because the hooks change it at the same
 * time: programs that it runs, attached to no packet. */
#include "lib/flow.h"

struct flow_request {
	__u32 family;
	__u32 from, count; /* cells */
	__u32 freed;
	__u32 adopted;
	struct weft_key4 key4;
	struct weft_key6 key6;
};

struct sweep {
	const struct weft_config *cfg;
	struct flow_request *request;
};

/* Whether the two ends of a flow are the endpoints that it was made for. Its key holds them in
 * order. */
ALWAYS_INLINE int same_ends(const struct weft_config *cfg, __u32 family,
			    const struct weft_cell *cell, const struct weft_flow *flow)
{
	union weft_addr a, b;
	struct weft_addr_key key = {};

	if (flow->checked == cfg->generation)
		return 1;
	if (family == 4) {
		key.network = network_of(cell->key4.network);
		addr_from4(&a, cell->key4.a);
		addr_from4(&b, cell->key4.b);
	} else {
		key.network = network_of(cell->key6.network);
		a = cell->key6.a;
		b = cell->key6.b;
	}
	return flow->born[0] == born_at(&key, &a) && flow->born[1] == born_at(&key, &b);
}

static long sweep_cell(__u32 i, void *state)
{
	struct sweep *s = state;
	struct flow_request *r = s->request;
	__u32 index = r->from + i, family = r->family;
	struct weft_cell *cell = cell_at(family, index);
	struct weft_flow *flow;
	__u64 word;

	if (!cell)
		return 1;
	word = *(volatile __u64 *)&cell->word;
	if (word & CELL_BUSY || !(word & CELL_OWNER))
		return 0;
	flow = cell_flow(family, cell);
	if (flow && flow->cell == index && same_ends(s->cfg, family, cell, flow))
		return 0;
	if (!cell_change(family, cell, word, (word & CELL_OWNER) | CELL_BUSY))
		return 0;
	cell_forget(family, index, cell, 0);
	cell_settle(family, cell, 0);
	r->freed++;
	return 0;
}

/* Frees cells whose flow is gone: the agent took it out of the table, or one of its ends. */
SEC("syscall")
int weft_flow_sweep(struct flow_request *r)
{
	__u32 zero = 0;
	struct sweep s = {.cfg = bpf_map_lookup_elem(&weft_config, &zero), .request = r};

	r->freed = 0;
	if (s.cfg)
		bpf_loop(r->count, sweep_cell, &s, 0);
	return 0;
}

/* Gives a flow of another table's, of another size, a cell of this one. */
SEC("syscall")
int weft_flow_adopt(struct flow_request *r)
{
	__u32 zero = 0, family = r->family, index;
	const struct weft_config *cfg = bpf_map_lookup_elem(&weft_config, &zero);
	struct weft_key4 key4 = r->key4;
	struct weft_key6 key6 = r->key6;
	struct weft_cell *cell;
	struct weft_flow *flow;

	r->adopted = 0;
	if (family == 4)
		flow = bpf_map_lookup_elem(&weft_flows4, &key4);
	else
		flow = bpf_map_lookup_elem(&weft_flows6, &key6);
	if (!cfg || !flow)
		return 0;
	index =
	    cell_take(cfg, family, OWNER((__u32)flow->slot, flow->direction & 1), flow->last_ns);
	cell = cell_at(family, index);
	if (!cell)
		return 0;
	if (family == 4)
		cell->key4 = key4;
	else
		cell->key6 = key6;
	flow->cell = index;
	cell_settle(family, cell, 1);
	r->adopted = 1;
	return 0;
}

/* Zeroes what was counted for an owner whose slot is given up, but not what it still holds. */
SEC("syscall")
int weft_owner_clear(struct flow_request *r)
{
	struct weft_owner *o = owner_at(r->from);

	if (!o)
		return 0;
	store_ordered(&o->flows_evicted, 0);
	store_ordered(&o->flows_refused, 0);
	store_ordered(&o->fragments_evicted, 0);
	store_ordered(&o->events_suppressed, 0);
	store_ordered(&o->errors_suppressed, 0);
	return 0;
}

char _license[] SEC("license") = "GPL";
