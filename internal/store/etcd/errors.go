package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// hints are what to do about errors of etcd's own.
var hints = []struct {
	err  error
	hint string
}{
	{rpctypes.ErrNoSpace,
		"etcd's database is full, and nothing can be written until it has room: compact and defragment it, then `etcdctl alarm disarm`"},
	{rpctypes.ErrPermissionDenied,
		"etcd refuses this to the user that the client certificate names: grant it as docs/store-etcd.md says"},
	{rpctypes.ErrUserEmpty,
		"etcd asks who this is: give a client certificate in store.etcd.tls, whose common name is a user of etcd's"},
	{rpctypes.ErrNoLeader,
		"etcd has no leader: fewer than a majority of its members see each other"},
}

// explain adds what to do to an error of etcd's.
func (e *Etcd) explain(err error) error {
	if err == nil {
		return nil
	}
	for _, h := range hints {
		if errors.Is(err, h.err) || strings.Contains(err.Error(), rpctypes.ErrorDesc(h.err)) {
			return fmt.Errorf("%s (%w)", h.hint, err)
		}
	}
	if code := status.Code(err); code == codes.Unavailable || code == codes.DeadlineExceeded ||
		errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer from etcd at %s: %w", strings.Join(e.opt.Endpoints, ", "),
			e.reason(err))
	}
	return err
}

// reason is what keeps the connection from being made. etcd's client waits for one until the time
// is over, and then says just that.
func (e *Etcd) reason(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), reasonTimeout)
	defer cancel()
	request := &etcdserverpb.RangeRequest{Key: []byte(e.root()), CountOnly: true}
	if _, why := e.kv.Range(ctx, request,
		grpc.WaitForReady(false)); status.Code(why) == codes.Unavailable {
		return errors.New(status.Convert(why).Message())
	}
	return err
}
