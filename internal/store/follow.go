package store

import (
	"maps"
	"slices"
)

// Follower collects what changes in a History until it is taken. It begins with all there is.
type Follower struct {
	history *History
	pending *pending
	listed  bool
}

// pending are objects and files of which a follower has not been told yet.
type pending struct {
	refs  map[ref]bool
	files map[string]bool // with other errors
}

func newPending() *pending { return &pending{refs: map[ref]bool{}, files: map[string]bool{}} }

func (p *pending) add(more *pending) {
	maps.Copy(p.refs, more.refs)
	maps.Copy(p.files, more.files)
}

// Follow begins to follow; Update tells the follower until Close.
func (h *History) Follow() *Follower {
	h.init()
	f := &Follower{history: h, pending: newPending()}
	for r := range h.verdicts {
		f.pending.refs[r] = true
	}
	for file := range h.sources {
		f.pending.files[file] = true
	}
	for file := range h.errs {
		f.pending.files[file] = true
	}
	return f
}

// Keep has Update tell this follower from now on, until Close.
func (f *Follower) Keep() *Follower {
	f.history.followers[f] = true
	return f
}

// Close ends the following.
func (f *Follower) Close() { delete(f.history.followers, f) }

// Take is what has changed since the last call, the first time everything there is.
func (f *Follower) Take() Delta {
	d := Delta{Listed: !f.listed, Errors: map[string][]ObjectError{}}
	h, p := f.history, f.pending
	for _, r := range slices.SortedFunc(maps.Keys(p.refs), compareRefs) {
		v := h.verdicts[r]
		c := Change{Kind: r.kind, Key: r.key, Unused: v.unused}
		if v.used != nil {
			c.Object = v.used.Object
		}
		if c.Object != nil || len(c.Unused) > 0 || f.listed {
			d.Changes = append(d.Changes, c)
		}
	}
	for file := range p.files {
		if errs := h.ErrorsOf(file); len(errs) > 0 || f.listed {
			d.Errors[file] = errs
		}
	}
	f.pending, f.listed = newPending(), true
	return d
}

// ErrorsOf are all errors that name a file.
func (h *History) ErrorsOf(file string) []ObjectError {
	out := slices.Clone(h.sources[file].errors(file, len(h.inUse[file])))
	for _, errs := range h.errs[file] {
		out = append(out, errs...)
	}
	sortErrors(out)
	return out
}
