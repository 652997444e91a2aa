package agent

import (
	"weft.dev/weft/internal/datapath/bpf"
)

// reasons finds a drop reason by its label.
var reasons = func() map[string]bpf.Reason {
	byLabel := map[string]bpf.Reason{}
	for _, reason := range bpf.Reasons() {
		byLabel[reason.String()] = reason
	}
	return byLabel
}()

// reasonLabels are the labels of all drop reasons, in the datapath's order.
func reasonLabels() []string {
	var labels []string
	for _, reason := range bpf.Reasons() {
		labels = append(labels, reason.String())
	}
	return labels
}

// reasonText says what a drop reason means, empty for none.
func reasonText(label string) string {
	if reason, ok := reasons[label]; ok {
		return reason.Text()
	}
	return ""
}

// reasonHint says what to look at, empty for none.
func reasonHint(label string) string {
	if reason, ok := reasons[label]; ok {
		return reason.Hint()
	}
	return ""
}
