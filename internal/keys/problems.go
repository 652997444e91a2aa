package keys

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// problems keeps what does not work, by what it is about, until it does. It is safe for
// concurrent use, and may be told of things under any lock.
type problems struct {
	log *slog.Logger

	mu   sync.Mutex
	text map[string]string
}

func newProblems(log *slog.Logger) *problems {
	return &problems{log: log,
		text: map[string]string{}}
}

// set notes why something does not work, nil if it does.
func (p *problems) set(what string, err error) {
	p.mu.Lock()
	old, text := p.text[what], ""
	if err != nil {
		text = err.Error()
		p.text[what] = text
	} else {
		delete(p.text, what)
	}
	p.mu.Unlock()
	switch {
	case text == old:
	case text == "":
		p.log.Info("keys: works again", "what", what)
	default:
		p.log.Warn("keys: does not work", "what", what, "err", text)
	}
}

// list is a sentence for each.
func (p *problems) list() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, what := range slices.Sorted(maps.Keys(p.text)) {
		out = append(out, what+": "+p.text[what])
	}
	return out
}
