package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"weft.dev/weft/internal/front/admin"
	"weft.dev/weft/internal/lab"
	"weft.dev/weft/internal/lab/labdir"
	"weft.dev/weft/internal/version"
)

// The lab's parts that the story speaks of, named in examples/lab.yaml.
const (
	nodeA    = "a"
	nodeB    = "b"
	sender   = "shop/client"
	neighbor = "shop/db"
	receiver = "shop/server"
)

// labMap is the lab for a drawing.
type labMap struct {
	Nodes []mapNode
	Wires []string
}

type mapNode struct {
	Name      string
	Addresses []string
	Pods      []mapPod
}

type mapPod struct{ Name, IPv4, IPv6 string }

// opening names what the demo runs on.
func (d *demo) opening() {
	fmt.Fprintf(d.out, "Weft demo: %s\n", machine())
}

func machine() string {
	host := ""
	if data, err := os.ReadFile("/etc/os-release"); err == nil {
		for line := range strings.Lines(string(data)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				host = strings.Trim(name, `"`) + ", "
			}
		}
	}
	info := version.Get()
	return fmt.Sprintf("weft %s on %sLinux %s, %d cores", info.Version, host, info.Kernel,
		runtime.NumCPU())
}

// topology builds the lab and draws it.
func (d *demo) topology(ctx context.Context) error {
	d.say("Nodes and pods are network namespaces on this machine. Each node runs a real agent; each pod is attached by the CNI plugin, as a container runtime would do it. What crosses the wire for pods is sealed: ESP in UDP, AES-256-GCM, in the kernel.")
	began := time.Now()
	if err := d.up(ctx); err != nil {
		return err
	}
	took := time.Since(began)
	m := drawMap(d.lab)
	d.print(m.text())
	d.add(block{Map: m})
	modes := &table{Header: []string{"NODE", "MODE", "WHY"}, Left: 3}
	hooks := 0
	for _, n := range d.lab.Nodes() {
		status, err := admin.NewClient(n.Socket).Status(ctx)
		if err != nil {
			return fmt.Errorf("ask the agent of node %s: %w", n.Name, err)
		}
		hooks += len(status.Links)
		modes.Rows = append(modes.Rows,
			[]string{n.Name, string(status.Mode.Active), status.Mode.Why})
	}
	d.showTable(modes)
	nodes, pods := len(d.lab.Nodes()), len(d.lab.Pods())
	d.check("lab", nodes == 2 && pods == 4 && hooks > 0,
		"%d agents ready, %d pods attached by CNI, %d eBPF hooks, in %.1f s", nodes, pods, hooks,
		took.Seconds())
	return nil
}

// up builds the lab of examples/lab.yaml under the demo's name. A lab of that name can
// only be an earlier demo's that was killed: nobody holds its lock any more.
func (d *demo) up(ctx context.Context) error {
	old, err := lab.Open(d.opts.Lab)
	if err == nil {
		d.say("An earlier demo was cut short; its lab is taken away first.")
		if err := old.Down(ctx); err != nil {
			return err
		}
	} else if !errors.Is(err, labdir.ErrNoLab) {
		return err
	}
	spec := lab.Default()
	// Old keys go soon, so that the demo can show many changes of them.
	spec.Name, spec.Agent = d.opts.Lab, map[string]any{"keys": map[string]any{"drain": "500ms"}}
	d.lab, err = lab.Up(ctx, spec, lab.Options{Binary: d.opts.Binary})
	return err
}

func drawMap(l *lab.Lab) *labMap {
	m := &labMap{}
	for _, n := range l.Nodes() {
		node := mapNode{Name: n.Name}
		for _, a := range n.Addresses {
			node.Addresses = append(node.Addresses, a.String())
		}
		for _, p := range l.Pods() {
			if p.Node == n.Name {
				node.Pods = append(node.Pods, mapPod{p.Key(), p.IPv4.String(), p.IPv6.String()})
			}
		}
		m.Nodes = append(m.Nodes, node)
	}
	for _, w := range l.Spec().Wires {
		m.Wires = append(m.Wires, fmt.Sprintf("wire %s, MTU %d", w.Name, w.MTU))
	}
	return m
}

// text draws the nodes side by side as boxes on their wire.
func (m *labMap) text() string {
	var boxes [][]string
	height := 0
	for _, n := range m.Nodes {
		boxes = append(boxes, n.box())
		height = max(height, len(n.Pods))
	}
	var out strings.Builder
	for i := range height + 4 {
		for j, b := range boxes {
			if j > 0 {
				out.WriteString("     ")
			}
			out.WriteString(boxLine(b, i, height+4))
		}
		out.WriteString("\n")
	}
	out.WriteString(m.wireText(boxes))
	return out.String()
}

// box are the lines of a node's box, without its lower edge.
func (n mapNode) box() []string {
	lines := []string{fmt.Sprintf(" node %s   %s ", n.Name, strings.Join(n.Addresses, "   ")), ""}
	for _, p := range n.Pods {
		lines = append(lines, fmt.Sprintf(" pod %-12s %-12s %-12s", p.Name, p.IPv4, p.IPv6))
	}
	width := 0
	for _, l := range lines {
		width = max(width, len(l))
	}
	out := []string{"┌" + strings.Repeat("─", width) + "┐"}
	for _, l := range lines {
		out = append(out, "│"+l+strings.Repeat(" ", width-len(l))+"│")
	}
	return out
}

// boxLine is line i of a box that is stretched to height lines; the last is its lower
// edge, from which the wire goes out.
func boxLine(b []string, i, height int) string {
	width := len([]rune(b[0])) - 2
	switch {
	case i == height-1:
		return "└" + strings.Repeat("─", width/2) + "┬" + strings.Repeat("─", width-width/2-1) + "┘"
	case i < len(b):
		return b[i]
	}
	return "│" + strings.Repeat(" ", width) + "│"
}

// wireText draws the line that joins the boxes.
func (m *labMap) wireText(boxes [][]string) string {
	if len(boxes) < 2 {
		return strings.Join(m.Wires, "; ") + "\n"
	}
	first, last := len([]rune(boxes[0][0])), len([]rune(boxes[len(boxes)-1][0]))
	total := 5 * (len(boxes) - 1)
	for _, b := range boxes {
		total += len([]rune(b[0]))
	}
	left, right := 1+(first-2)/2, total-last+1+(last-2)/2
	label := " " + strings.Join(m.Wires, "; ") + " "
	room := max(right-left-1-len([]rune(label)), 2)
	return strings.Repeat(" ", left) + "└" +
		strings.Repeat("─", room/2) + label + strings.Repeat("─", room-room/2) + "┘\n"
}
