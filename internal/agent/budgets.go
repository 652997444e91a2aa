package agent

import (
	"fmt"
	"strings"

	"weft.dev/weft/internal/datapath"
)

// budgetsBySlot sorts the budgets by whose they are.
func budgetsBySlot(rows []datapath.Budget) map[uint16][]datapath.Budget {
	by := map[uint16][]datapath.Budget{}
	for _, row := range rows {
		by[row.Slot] = append(by[row.Slot], row)
	}
	return by
}

// overBudget names, one line each, the endpoints that lost something to their own share of the flow
// table or of the fragments, since they are attached. Events and errors that were held back are no
// loss of traffic and not in it.
func overBudget(running *node) ([]string, error) {
	rows, err := running.dp.Budgets()
	if err != nil {
		return nil, fmt.Errorf("read budgets: %w", err)
	}
	names := map[uint16]string{0: "this node itself"}
	for _, info := range running.manager.List() {
		names[info.Slot] = describe(info, nil).Name()
	}
	var lines []string
	for _, row := range rows {
		if lost := row.Lost(); lost != "" && names[row.Slot] != "" {
			lines = append(lines,
				fmt.Sprintf("%s, %s: %s", names[row.Slot], whose(row.Direction), lost))
		}
	}
	return lines, nil
}

// whose says what a direction means for a budget.
func whose(direction string) string {
	return strings.NewReplacer("egress", "what it began", "ingress",
		"what others began towards it").Replace(direction)
}
