package agent

import (
	"fmt"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/front/admin"
)

// podDatapathOf says by which datapath an endpoint's packets go, why, and who asked for it.
func podDatapathOf(running *node, info endpoint.Info) datapath.PodDatapath {
	path := running.dp.PodDatapath(info.Datapath())
	if asker := info.DatapathAsker(); asker != "" {
		path.Why += " (" + asker + ")"
	}
	return path
}

// addPodDatapaths counts the endpoints, those on the XDP datapath by their own wish, and names
// those that want it in vain.
func (b *backend) addPodDatapaths(status *admin.Status, running *node) {
	list := running.manager.List()
	status.Endpoints = len(list)
	for _, info := range list {
		if !info.XDPDatapath() {
			continue
		}
		path := podDatapathOf(running, info)
		if path.Refused {
			status.Problems = append(status.Problems,
				fmt.Sprintf("endpoint %s has the datapath %s: %s", info.Key(), path.Name, path.Why))
		} else if status.Mode.XDPDatapath {
			status.XDPDatapaths++
		}
	}
}
