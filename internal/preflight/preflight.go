// Package preflight looks whether a host is fit for an agent, before anything is changed: what it
// finds, and what to do about it. It changes nothing itself.
package preflight

import (
	"context"
	"strings"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/config"
	"weft.dev/weft/internal/datapath/esp"
	"weft.dev/weft/internal/startup"
	"weft.dev/weft/internal/store"
)

// State is how a check came out.
type State string

// The states. A host with one that fails runs no agent, or one that never becomes ready.
const (
	OK   State = "ok"
	Warn State = "warn"
	Fail State = "fail"
)

// Check is one line of a report.
type Check struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Found string `json:"found"`
	// Do is empty where there is nothing to do.
	Do string `json:"do,omitempty"`
}

// Report is what was found.
type Report struct {
	Node   string  `json:"node,omitempty"`
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// look is a check at work.
type look struct {
	Host
	ctx context.Context
	cfg *config.Config

	// What a check has learned, for those that follow.
	engine    esp.EngineStatus
	engineErr error
	snapshot  *store.Snapshot
	node      *v1alpha1.Node
	links     *startup.Links
}

// check is a row of the table of checks. What applies to some configurations only has when.
type check struct {
	name string
	when func(*config.Config) bool
	look func(*look) Check
}

func sealing(cfg *config.Config) bool { return cfg.Encryption.On() }

func withSealer(cfg *config.Config) bool {
	return cfg.Encryption.On() &&
		(cfg.Encryption.Engine == config.EngineUser || cfg.Encryption.Engine == config.EngineAuto)
}

// checks are all of them, in the order in which they are told.
var checks = []check{
	{name: "root", look: (*look).root},
	{name: "kernel", look: (*look).kernel},
	{name: "btf", look: (*look).btf},
	{name: "bpffs", look: (*look).bpffs},
	{name: "lockdown", look: (*look).lockdown},
	{name: "capabilities", look: (*look).capabilities},
	{name: "programs", look: (*look).programs},
	{name: "aes", when: sealing, look: (*look).aes},
	{name: "disk", look: (*look).disk},
	{name: "lsm", look: (*look).lsm},
	{name: "objects", look: (*look).objects},
	{name: "uplinks", look: (*look).uplinks},
	{name: "mtu", look: (*look).mtu},
	{name: "ipv6", look: (*look).ipv6},
	{name: "firewall", look: (*look).firewall},
	{name: "ports", look: (*look).ports},
	{name: "clock", look: (*look).clock},
	{name: "certificate", when: sealing, look: (*look).certificate},
	{name: "kek", when: sealing, look: (*look).kek},
	{name: "sealer", when: withSealer, look: (*look).sealer},
	{name: "runtime", look: (*look).runtime},
	{name: "cni", look: (*look).cni},
}

// Run looks at a host for an agent of this configuration. broken is why there is none, if there is
// none: then cfg is the default one.
func Run(ctx context.Context, cfg *config.Config, broken error, host Host) *Report {
	report := &Report{Node: cfg.Node}
	first := ok("it is valid, for node %s", cfg.Node)
	if broken != nil {
		first = failed("correct it; `weft config example` prints one with every key explained",
			"%v", broken)
	}
	first.Name = "configuration"
	report.Checks = append(report.Checks, first)
	at := &look{Host: host, ctx: ctx, cfg: cfg}
	for _, c := range checks {
		if c.when != nil && !c.when(cfg) {
			continue
		}
		found := c.look(at)
		found.Name = c.name
		report.Checks = append(report.Checks, found)
	}
	report.OK = true
	for i := range report.Checks {
		c := &report.Checks[i]
		report.OK = report.OK && c.State != Fail
		c.Found = strings.Join(strings.Fields(c.Found), " ") // errors of several lines are one here
	}
	return report
}
