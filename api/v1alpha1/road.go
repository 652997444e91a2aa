package v1alpha1

import "fmt"

// RoadAnnotation on a Pod asks for the XDP road: native XDP for frames that the pod sends as XDP frames, by
// AF_XDP or a router of its own, and a second interface with TC for what its stack sends. Its one
// value is RoadXDP.
const RoadAnnotation = "ebpf.xdp/road"

// RoadXDP is the value of RoadAnnotation.
const RoadXDP = "xdp"

// CheckRoadAnnotation says what is wrong with the annotation of a pod, "" if nothing.
func CheckRoadAnnotation(annotations map[string]string) string {
	value, there := annotations[RoadAnnotation]
	if !there || value == RoadXDP {
		return ""
	}
	return fmt.Sprintf("is %s: want %q, or no such annotation for an ordinary interface, which the pod has until then", quote(value), RoadXDP)
}
