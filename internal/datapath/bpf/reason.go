package bpf

import "fmt"

// Reason is why a packet was refused. The list is generated from bpf/lib/reasons.h.
type Reason uint8

type reasonInfo struct{ label, what, hint string }

// String is the reason's label, as in metrics: lower case with underscores.
func (r Reason) String() string {
	if int(r) < len(reasonTable) {
		return reasonTable[r].label
	}
	return fmt.Sprintf("reason_%d", uint8(r))
}

// Text says what happened, for people.
func (r Reason) Text() string {
	if int(r) < len(reasonTable) {
		return reasonTable[r].what
	}
	return "unknown to this version of weft"
}

// Hint says what to look at.
func (r Reason) Hint() string {
	if int(r) < len(reasonTable) {
		return reasonTable[r].hint
	}
	return ""
}

// Reasons lists every drop reason; "not dropped" is not among them.
func Reasons() []Reason {
	list := make([]Reason, 0, len(reasonTable)-1)
	for i := 1; i < len(reasonTable); i++ {
		list = append(list, Reason(i))
	}
	return list
}
