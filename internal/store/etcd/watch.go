package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"weft.dev/weft/internal/store"
)

// awayFile is what the errors of etcd as a whole are under.
const awayFile = "store.etcd"

// errBehind ends a stream that cannot go on where the mirror is.
var errBehind = errors.New("the watch has to begin anew")

// Watch implements store.Store. It returns when ctx ends: while etcd is away it tries again, and
// what was read last stays.
//
// etcd's own client would resume a watch by itself and not tell, at a revision that is another one
// after etcd was restored. So the stream here is a plain one, and each new one begins with a look
// at where etcd is.
func (e *Etcd) Watch(ctx context.Context, changed func(store.Delta)) error {
	w := &watch{etcd: e, changed: changed}
	defer w.close()
	pause := retryMin
	for {
		connected, err := w.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if connected {
			pause = retryMin
		}
		if !errors.Is(err, errBehind) {
			w.away(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause + rand.N(pause/2)):
		}
		pause = min(2*pause, retryMax)
	}
}

type watch struct {
	etcd    *Etcd
	changed func(store.Delta)
	follow  *store.Follower // nil before the first listing
}

func (w *watch) close() {
	e := w.etcd
	e.setAway(nil)
	if w.follow != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		w.follow.Close()
	}
}

// session brings the mirror up to date and follows a stream until that ends.
func (w *watch) session(ctx context.Context) (connected bool, err error) {
	e := w.etcd
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	if err := e.refresh(ctx); err != nil {
		return false, err
	}
	stream, err := e.watches.Watch(ctx, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return false, e.explain(err)
	}
	e.mu.Lock()
	from := e.mirror
	e.mu.Unlock()
	request := &etcdserverpb.WatchCreateRequest{
		Key: []byte(e.root()), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(e.root())),
		StartRevision: from.revision + 1, ProgressNotify: true,
	}
	if err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: request}}); err != nil {
		return false, e.explain(err)
	}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return connected, e.explain(err)
		}
		if err := e.follow(answer, from); err != nil {
			return connected, err
		}
		connected = true
		w.tell()
	}
}

// follow takes in an answer of a stream that began with the mirror as it was in from.
func (e *Etcd) follow(answer *etcdserverpb.WatchResponse, from mirror) error {
	switch {
	case answer.Canceled && answer.CompactRevision > 0:
		return errBehind
	case answer.Canceled:
		return e.explain(fmt.Errorf("etcd ended the watch: %s", answer.CancelReason))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.mirror
	if m.generation != from.generation || answer.Header.ClusterId != m.cluster || answer.Created &&
		answer.Header.Revision < from.revision {
		return errBehind
	}
	changed, reached := map[string]*store.Source{}, m.revision
	if len(answer.Events) == 0 && !answer.Created {
		reached = max(reached, answer.Header.Revision) // progress: all events until then were sent
	}
	for _, event := range answer.Events {
		reached = max(reached, event.Kv.ModRevision)
		if event.Kv.ModRevision <= m.revision {
			continue // a refresh was faster
		}
		if event.Type == clientv3.EventTypeDelete {
			e.remove(string(event.Kv.Key), changed)
		} else {
			e.put(event.Kv, changed)
		}
	}
	e.history.Update(changed)
	m.revision = reached
	return nil
}

// tell delivers what is new.
func (w *watch) tell() {
	e := w.etcd
	back := e.setAway(nil)
	e.mu.Lock()
	if w.follow == nil {
		w.follow = e.history.Follow().Keep()
	}
	delta := w.follow.Take()
	e.mu.Unlock()
	if back && !delta.Listed {
		delta.Errors[awayFile] = nil
		e.log.Info("etcd is back")
	}
	if delta.Listed || len(delta.Changes) > 0 || len(delta.Errors) > 0 {
		w.changed(delta)
	}
}

// away says that etcd cannot be reached. Before the first listing there is nobody to be told but
// the log.
func (w *watch) away(err error) {
	e := w.etcd
	if !e.setAway(err) {
		return
	}
	e.log.Warn("etcd is away", "err", err)
	if w.follow == nil {
		return
	}
	text := e.Away().Error() + "; the objects read last stay in use"
	w.changed(store.Delta{Errors: map[string][]store.ObjectError{awayFile: {{File: awayFile,
		Msg: text}}}})
}
