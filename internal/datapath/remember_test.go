package datapath

import (
	"regexp"
	"testing"

	"github.com/cilium/ebpf/asm"
)

var (
	lineOfGeneration = regexp.MustCompile(`to->generation\b`)
	lineOfDecision   = regexp.MustCompile(`^\s*\*to = \*c;`)
)

// TestDecisionIsVoidWhileWritten: a decision that is put into a flow has no generation while it is written, or another CPU could send a
// packet by half of the old decision and half of the new. No run shows that reliably, so this reads the order of the stores in the compiled
// programs.
func TestDecisionIsVoidWhileWritten(t *testing.T) {
	for _, object := range []string{"from_pod_xdp", "from_pod_tc", "from_wire_xdp", "from_wire_tc"} {
		spec, err := loadSpec(object)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for name, program := range spec.Programs {
			for i, order := range storesOf(program.Instructions) {
				found++
				if order[0] != 'g' || order[len(order)-1] != 'g' || len(order) < 4 {
					t.Errorf("%s, %s, place %d: stores to the generation (g) and the rest (d) in the order %s, want g, d…, g", object, name, i, order)
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: no place that writes a decision was found", object)
		}
	}
}

// storesOf gives, for each place where a decision is written, the order of the stores: g to its generation, d to the rest.
func storesOf(instructions asm.Instructions) []string {
	var places []string
	var order []byte
	line := ""
	end := func() {
		if len(order) > 0 {
			places = append(places, string(order))
		}
		order = nil
	}
	for i := range instructions {
		ins := &instructions[i]
		if ins.Symbol() != "" {
			end()
		}
		if source := ins.Source(); source != nil {
			line = source.String()
		}
		store := ins.OpCode.Class().IsStore() && ins.Dst != asm.R10
		switch {
		case store && lineOfDecision.MatchString(line):
			order = append(order, 'd')
		case store && lineOfGeneration.MatchString(line):
			order = append(order, 'g')
			// The second one after the rest is a place's last.
			if len(order) > 2 && order[len(order)-2] == 'd' {
				end()
			}
		}
	}
	end()
	return places
}
