package etcd

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/store"
)

// leaderName is the key of the leader of epochs below the prefix.
const leaderName = "leader"

func (e *Etcd) root() string      { return e.opt.Prefix + "/" }
func (e *Etcd) leaderKey() string { return e.root() + leaderName }

// dirOf is where the objects of a kind are, with its last slash.
func (e *Etcd) dirOf(kind string) string { return e.root() + strings.ToLower(kind) + "/" }

// endpointsOf is where a node's endpoints are: its own part, which no other node need be able to
// write.
func (e *Etcd) endpointsOf(node string) string {
	return e.dirOf(v1alpha1.KindEndpoint) + node +
		"/"
}

// keyOf is where an object belongs.
func (e *Etcd) keyOf(o v1alpha1.Object) string {
	if ep, ok := o.(*v1alpha1.Endpoint); ok {
		return e.endpointsOf(ep.Spec.NodeName) + ep.Metadata.Key()
	}
	return e.dirOf(o.Type().Kind) + o.Meta().Key()
}

// kindOf is the kind whose objects are where a key is, "" for none.
func (e *Etcd) kindOf(key string) string {
	rest, ok := strings.CutPrefix(key, e.root())
	dir, name, found := strings.Cut(rest, "/")
	if !ok || !found || name == "" {
		return ""
	}
	for _, kind := range store.Kinds() {
		if strings.ToLower(kind) == dir {
			return kind
		}
	}
	return ""
}

// fileOf is what a key is called in errors. One that holds no object must not look like a directory
// of others.
func (e *Etcd) fileOf(key string) string {
	if e.kindOf(key) == "" {
		return strconv.Quote(key)
	}
	return key
}

// sourceOf is what a key holds, nil for nothing that matters. was is the key of the identity that
// it gave a number to until now.
func (e *Etcd) sourceOf(key string, value []byte, was string) *store.Source {
	if key == e.leaderKey() {
		return nil
	}
	kind := e.kindOf(key)
	if kind == "" {
		return wrong(e.fileOf(key),
			fmt.Sprintf("is no key that is read below %s: remove it (etcdctl del)", e.opt.Prefix))
	}
	objects, errs := store.Decode(key, value)
	s := &store.Source{Objects: objects, Errors: errs, Empty: len(bytes.TrimSpace(value)) == 0}
	switch {
	case len(objects) == 0:
		return s
	case len(objects) > 1:
		return wrong(key, fmt.Sprintf("holds %d objects: keep one", len(objects)))
	}
	if at := e.keyOf(objects[0].Object); at != key {
		o := objects[0].Object
		return wrong(key,
			fmt.Sprintf("holds %s %s, which belongs at %s: move it", o.Type().Kind, o.Meta().Key(),
				at))
	}
	if now := identityOf(s); was != "" && was != now {
		return wrong(key,
			fmt.Sprintf("is now the number of %s, and was given to %s: a number is given once, so the first stays in use", now, was))
	}
	return s
}

// identityOf is the key (v1alpha1.IdentitySpec.Key) of a source that is an identity, else "".
func identityOf(s *store.Source) string {
	if s == nil || len(s.Objects) != 1 {
		return ""
	}
	if i, ok := s.Objects[0].Object.(*v1alpha1.Identity); ok {
		return i.Spec.Key()
	}
	return ""
}

func wrong(file, msg string) *store.Source {
	return &store.Source{Errors: []store.ObjectError{{File: file, Msg: msg}}}
}
