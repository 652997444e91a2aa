// Package cni is Weft's CNI front: the plugin that a container runtime executes, and the
// handler in the agent that does the work.
//
// The plugin is thin. It checks its configuration, hands the request to the agent over
// the admin socket, and prints the answer in the version that was asked for. Only a DEL
// must work while no agent runs, because runtimes do not let a pod go until it succeeds.
package cni

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
)

// Starting is in the details of the error of an agent that has not come up yet.
const Starting = "starting"

// Type is the plugin's name: the "type" in a network configuration and the file's name.
const Type = "weft-cni"

// CodeUnhealthy is CHECK's error code for an endpoint that is not as ADD made it; codes
// from 100 on are the plugin's own.
const CodeUnhealthy = 101

// How long the agent may take.
const (
	callTimeout   = 60 * time.Second
	gcTimeout     = 5 * time.Minute
	statusTimeout = 5 * time.Second
)

// Versions are the versions of the CNI specification that the plugin speaks.
var Versions = version.All

// Main runs the plugin: it reads the environment and standard input, prints a result or
// an error, and exits with 1 after an error.
func Main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	skel.PluginMainFuncs(skel.CNIFuncs{Add: cmdAdd, Del: cmdDel, Check: cmdCheck, GC: cmdGC,
		Status: cmdStatus}, Versions, "CNI plugin "+Type)
}

func cmdAdd(args *skel.CmdArgs) error {
	conf, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	req, err := conf.addRequest(args.ContainerID, args.Netns, args.IfName, args.Args)
	if err != nil {
		return err
	}
	var result current.Result
	if err := call(conf.socket(), "add", callTimeout, req, &result); err != nil {
		secure(req)
		return unlessAgent(err, types.ErrTryAgainLater)
	}
	if req.Chained {
		out, err := conf.passOn()
		if err != nil {
			return err
		}
		_, err = os.Stdout.Write(append(out, '\n'))
		return err
	}
	result.DNS = conf.DNS
	return types.PrintResult(&result, conf.CNIVersion)
}

func cmdDel(args *skel.CmdArgs) error {
	conf, err := parseAnyConfig(args.StdinData)
	if err != nil {
		return err
	}
	req := &request{ContainerID: args.ContainerID, IfName: args.IfName, NetNS: args.Netns}
	err = call(conf.socket(), "del", callTimeout, req, nil)
	var down *agentDownError
	if !errors.As(err, &down) {
		return err
	}
	slog.Warn("the agent is down: removing the interface; the agent frees the rest when it starts",
		"socket", conf.socket(), "err", down.cause)
	if err := endpoint.RemoveInterface(req.attachment(), args.Netns); err != nil {
		return fmt.Errorf("the agent is down and the interface cannot be removed without it: %w",
			err)
	}
	return nil
}

func cmdCheck(args *skel.CmdArgs) error {
	conf, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	req, err := conf.checkRequest(args.ContainerID, args.Netns, args.IfName)
	if err != nil {
		return err
	}
	return unlessAgent(call(conf.socket(), "check", callTimeout, req, nil), types.ErrTryAgainLater)
}

func cmdGC(args *skel.CmdArgs) error {
	conf, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	req, err := conf.gcRequest()
	if err != nil {
		return err
	}
	return unlessAgent(call(conf.socket(), "gc", gcTimeout, req, nil), types.ErrTryAgainLater)
}

func cmdStatus(args *skel.CmdArgs) error {
	conf, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	err = call(conf.socket(), "status", statusTimeout, &request{}, nil)
	if away(err) {
		if pinErr := datapath.Works(conf.pins()); pinErr == nil {
			slog.Warn("no agent is ready: pods that are there keep their network, ADD has to wait",
				"socket", conf.socket(), "err", err)
			return nil
		}
	}
	return unlessAgent(err, types.ErrPluginNotAvailable)
}

// away tells whether there is no agent, or one that is still starting: nothing is wrong with the
// node's pods then if the datapath of the agent before is there.
func away(err error) bool {
	var down *agentDownError
	var answer *types.Error
	return errors.As(err, &down) || errors.As(err, &answer) &&
		answer.Code == types.ErrPluginNotAvailable && answer.Details == Starting
}

// secure sets the interface of a chained attachment down when ADD has failed: the plugin before
// this one has set it up, and it has no hooks. One that has them stays as it is.
func secure(req *request) {
	if !req.Chained {
		return
	}
	if err := endpoint.SetDownUnhooked(req.attachment(), req.NetNS); err != nil {
		slog.Warn("the interface has no hooks and could not be set down: DEL it", "interface",
			req.IfName, "err", err)
	}
}

// unlessAgent gives the error of an agent that does not answer its CNI code.
func unlessAgent(err error, code uint) error {
	var down *agentDownError
	if errors.As(err, &down) {
		return types.NewError(code, down.Error(),
			"start it with `weft agent --config FILE`, or set \"instance\" or \"socket\" in the network configuration")
	}
	return err
}
