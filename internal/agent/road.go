package agent

import (
	"fmt"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/endpoint"
	"weft.dev/weft/internal/front/admin"
)

// roadOf says by which road an endpoint's packets go, why, and who asked for it.
func roadOf(running *node, info endpoint.Info) datapath.Road {
	road := running.dp.Road(info.Datapath())
	if asker := info.RoadAsker(); asker != "" {
		road.Why += " (" + asker + ")"
	}
	return road
}

// addRoads counts the endpoints, those on the XDP road by their own wish, and names those that want it in vain.
func (b *backend) addRoads(status *admin.Status, running *node) {
	list := running.manager.List()
	status.Endpoints = len(list)
	for _, info := range list {
		if !info.XDPRoad() {
			continue
		}
		road := roadOf(running, info)
		if road.Refused {
			status.Problems = append(status.Problems, fmt.Sprintf("endpoint %s has the road %s: %s", info.Key(), road.Name, road.Why))
		} else if status.Mode.XDPRoad {
			status.XDPRoads++
		}
	}
}
