package agent

import "weft.dev/weft/internal/datapath"

// reasons finds a drop reason by its label.
var reasons = func() map[string]datapath.Reason {
	byLabel := map[string]datapath.Reason{}
	for _, reason := range datapath.Reasons() {
		byLabel[reason.String()] = reason
	}
	return byLabel
}()

// reasonLabels are the labels of all drop reasons, in the datapath's order.
func reasonLabels() []string {
	var labels []string
	for _, reason := range datapath.Reasons() {
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
