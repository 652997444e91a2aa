package hook

import (
	stdmaps "maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"weft.dev/weft/internal/datapath/bpf"
)

// Programs are the hooks' programs, loaded and not yet attached anywhere. Their methods are safe
// for concurrent use.
type Programs struct {
	maps      *bpf.Maps
	constants map[string]any
	loaded    map[string]*ebpf.Program // by object; those of netfilter only if packets are sealed
	closers   []*ebpf.Collection

	// What only some endpoints need is loaded with the first of them.
	mu     sync.Mutex
	second *ebpf.Program            // from_pod for second interfaces
	outs   map[uint32]*ebpf.Program // pod_out by its target's ifindex, which is mostly the same in all pods
	sealer map[string]*ebpf.Program // by object
	large  map[string]*ebpf.Program // XDP programs with xdp.frags by hook, if not all have it
	guards map[string]*ebpf.Program // those of netfilter by object, if packets are not sealed
}

// Load verifies and loads every hook's program on the shared maps, with constants set. frags lets
// XDP see frames larger than a page.
func Load(m *bpf.Maps, constants map[string]any, frags bool) (*Programs, error) {
	p := &Programs{maps: m, constants: stdmaps.Clone(constants), loaded: map[string]*ebpf.Program{},
		outs: map[uint32]*ebpf.Program{}, large: map[string]*ebpf.Program{},
		sealer: map[string]*ebpf.Program{}, guards: map[string]*ebpf.Program{}}
	p.constants["weft_multi_buffer"] = bpf.Flag(frags)
	for _, h := range Table {
		if h.perTarget || h.onDemand || h.netfilter != nil &&
			constants["weft_sealing"] == bpf.Flag(false) {
			continue
		}
		for _, k := range h.kinds() {
			name := object(h.Name, k)
			if p.loaded[name] != nil {
				continue
			}
			program, err := p.load(name, h.Name, nil, frags)
			if err != nil {
				p.Close()
				return nil, err
			}
			p.loaded[name] = program
		}
	}
	return p, nil
}

// load loads a hook's program from an object, with more constants set than all have.
func (p *Programs) load(object, name string, more map[string]any,
	frags bool) (*ebpf.Program, error) {
	constants := stdmaps.Clone(p.constants)
	stdmaps.Copy(constants, more)
	collection, err := bpf.Load(p.maps, object, Function(name), constants, frags)
	if err != nil {
		return nil, err
	}
	p.closers = append(p.closers, collection)
	return collection.Programs[Function(name)], nil
}

// Close lets go of the programs. What is attached stays.
func (p *Programs) Close() {
	for _, c := range p.closers {
		c.Close()
	}
}

// Get is a hook's program for a kind, nil if it is not loaded.
func (p *Programs) Get(name string, kind Kind) *ebpf.Program { return p.loaded[object(name, kind)] }

// At lists what is attached at a place where packets are taken by way, in order.
func (p *Programs) At(place Place, way Way) []Attachment {
	var list []Attachment
	for _, h := range Table {
		if k := h.kind(way); k != "" && slices.Contains(h.At, place) {
			list = append(list, Attachment{h.Name, k, p.Get(h.Name, k)})
		}
	}
	return list
}

// PodOut is pod_out for a target interface; the target is a constant in it.
func (p *Programs) PodOut(target uint32) (Attachment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outs[target] == nil {
		program, err := p.load("pod_out_tc", "pod_out", map[string]any{"weft_out_ifindex": target},
			false)
		if err != nil {
			return Attachment{}, err
		}
		p.outs[target] = program
	}
	return Attachment{"pod_out", TCEgress, p.outs[target]}, nil
}

// Second is from_pod for second interfaces.
func (p *Programs) Second() (Attachment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.second == nil {
		program, err := p.load("from_pod_tc", "from_pod", map[string]any{"weft_second": uint8(1)},
			false)
		if err != nil {
			return Attachment{}, err
		}
		p.second = program
	}
	return Attachment{"from_pod", TCIngress, p.second}, nil
}

// Sealer are the hooks of the sealer's tap, loaded at the first call.
func (p *Programs) Sealer() ([]Attachment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Attachment
	for _, h := range Table {
		if !slices.Contains(h.At, Sealer) {
			continue
		}
		name := object(h.Name, h.TC)
		if p.sealer[name] == nil {
			program, err := p.load(name, h.Name, nil, false)
			if err != nil {
				return nil, err
			}
			p.sealer[name] = program
		}
		list = append(list, Attachment{h.Name, h.TC, p.sealer[name]})
	}
	return list, nil
}

// netfilter is the program of a hook at Node, loaded at the first call where packets are not
// sealed.
func (p *Programs) netfilter(h Hook, kind Kind) (*ebpf.Program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := object(h.Name, kind)
	if p.loaded[name] != nil {
		return p.loaded[name], nil
	}
	if p.guards[name] == nil {
		program, err := p.load(name, h.Name, nil, false)
		if err != nil {
			return nil, err
		}
		p.guards[name] = program
	}
	return p.guards[name], nil
}

// withFrags is the XDP program of a hook loaded with xdp.frags.
func (p *Programs) withFrags(name string) (*ebpf.Program, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.large[name] == nil {
		program, err := p.load(object(name, XDP), name,
			map[string]any{"weft_multi_buffer": bpf.Flag(true)}, true)
		if err != nil {
			return nil, err
		}
		p.large[name] = program
	}
	return p.large[name], nil
}
