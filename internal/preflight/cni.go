package preflight

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
)

const cniDir = "/etc/cni/net.d"

// cni looks at the network that runtimes take: of the files in their directory, the first by name.
func (l *look) cni() Check {
	names, err := l.ReadDir(cniDir)
	if err != nil && !missing(err) {
		return warned("make it readable for root", "%v", err)
	}
	const do = "write /etc/cni/net.d/10-weft.conflist as docs/cni.md shows, so that its name sorts first"
	for _, name := range names {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) {
			continue
		}
		text, err := l.ReadFile(filepath.Join(cniDir, name))
		if err != nil {
			return warned("make it readable for root", "%v", err)
		}
		if plugins := pluginsOf(text); !slices.Contains(plugins, "weft-cni") {
			return warned(do, "runtimes take %s, whose plugins are %s", name,
				strings.Join(plugins, ", "))
		}
		return l.plugins(name, pluginsOf(text))
	}
	return warned(do, "no network in %s", cniDir)
}

// pluginDirs are where runtimes look for plugins, and where Debian's do.
var pluginDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}

// plugins looks for the programs that runtimes run for the network of a file. containerd runs one
// that no file names: loopback, which sets a pod's lo up.
func (l *look) plugins(file string, needed []string) Check {
	if _, err := l.Stat(sockets[0][1]); err == nil {
		needed = append(needed, "loopback")
	}
	var lacking []string
	for _, name := range needed {
		if !slices.ContainsFunc(pluginDirs, func(dir string) bool {
			_, err := l.Stat(filepath.Join(dir, name))
			return err == nil
		}) {
			lacking = append(lacking, name)
		}
	}
	if lacking != nil {
		return warned("install them, as docs/cni.md says, unless the runtime looks elsewhere: no pod can be made without",
			"runtimes take %s, and %s is missing in %s", file, strings.Join(lacking, ", "),
			strings.Join(pluginDirs, " and "))
	}
	return ok("runtimes take %s", file)
}

// pluginsOf are the plugins of a network configuration, of one plugin or a list.
func pluginsOf(text []byte) (types []string) {
	type plugin struct {
		Type string `json:"type"`
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if json.Unmarshal(text, &list) != nil {
		return []string{"not readable"}
	}
	for _, p := range append([]plugin{list.plugin}, list.Plugins...) {
		if p.Type != "" {
			types = append(types, p.Type)
		}
	}
	return types
}
