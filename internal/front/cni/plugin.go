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

	"weft.dev/weft/internal/endpoint"
)

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
	skel.PluginMainFuncs(skel.CNIFuncs{Add: cmdAdd, Del: cmdDel, Check: cmdCheck, GC: cmdGC, Status: cmdStatus}, Versions, "CNI plugin "+Type)
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
	slog.Warn("the agent is down: removing the interface; the agent frees the rest when it starts", "socket", conf.socket(), "error", down.cause)
	if err := endpoint.RemoveInterface(req.attachment(), args.Netns); err != nil {
		return fmt.Errorf("the agent is down and the interface cannot be removed without it: %w", err)
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
	return unlessAgent(call(conf.socket(), "status", statusTimeout, &request{}, nil), types.ErrPluginNotAvailable)
}

// unlessAgent gives the error of an agent that does not answer its CNI code.
func unlessAgent(err error, code uint) error {
	var down *agentDownError
	if errors.As(err, &down) {
		return types.NewError(code, down.Error(), "start it with `weft agent --config FILE`, or set \"instance\" or \"socket\" in the network configuration")
	}
	return err
}
