package v1alpha1

import "fmt"

// DatapathAnnotation on a Pod asks for the XDP datapath: native XDP for frames that the pod sends
// as XDP frames, by AF_XDP or a router of its own, and a second interface with TC for what its
// stack sends. Its one value is DatapathXDP.
const DatapathAnnotation = "ebpf.xdp/datapath"

// DatapathXDP is the value of DatapathAnnotation.
const DatapathXDP = "xdp"

// formerAnnotation is the name that DatapathAnnotation had first. It is honoured no more, and
// named.
const formerAnnotation = "ebpf.xdp/road" // glossary: format

// CheckDatapathAnnotation says what is wrong with the annotation of a pod, "" if nothing.
func CheckDatapathAnnotation(annotations map[string]string) string {
	value, there := annotations[DatapathAnnotation]
	if _, former := annotations[formerAnnotation]; former && !there {
		return "is missing: it was " + formerAnnotation +
			" once, which asks for nothing any more: write it by its name of now"
	}
	if !there || value == DatapathXDP {
		return ""
	}
	return fmt.Sprintf("is %s: want %q, or no such annotation for an ordinary interface, which the pod has until then", quote(value), DatapathXDP)
}
