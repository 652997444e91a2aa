package agent

import (
	"context"
	"encoding/json"

	"weft.dev/weft/internal/flows"
	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/version"
)

// dumpFlows bounds the flow table in a dump.
const dumpFlows = 20000

// Sysdump implements admin.Backend. A part that cannot be read is replaced by its error.
func (b *backend) Sysdump(ctx context.Context) (admin.Sysdump, error) {
	dump := admin.Sysdump{}
	add := func(name string, value any, err error) {
		if err != nil {
			value = map[string]string{"error": err.Error()}
		}
		encoded, err := json.Marshal(value)
		if err != nil {
			encoded, _ = json.Marshal(map[string]string{"error": err.Error()})
		}
		dump[name] = encoded
	}
	status, err := b.Status(ctx)
	add("status", status, err)
	endpoints, err := b.Endpoints(ctx)
	add("endpoints", endpoints, err)
	nodes, err := b.Nodes(ctx)
	add("nodes", nodes, err)
	drops, err := b.Drops(ctx, false)
	add("drops", drops, err)
	policies, err := b.Policies(ctx)
	add("policies", policies, err)
	encryption, err := b.Encrypt(ctx)
	add("encrypt", encryption, err)
	table, err := b.FlowTable(ctx, dumpFlows)
	add("flowtable", table, err)
	records := b.hub.Last(0, nil)
	if records == nil {
		records = []flows.Flow{}
	}
	add("flows", records, nil)
	// The configuration holds paths and numbers only; what is secret is a reference, never a value.
	add("config", b.cfg, nil)
	add("version", version.Get(), nil)
	add("log", b.opt.LogTail.Lines(), nil)
	if running := b.running(); running != nil {
		counters, err := running.dp.Counters()
		add("counters", counters, err)
	}
	return dump, nil
}
