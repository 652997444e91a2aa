package ca

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"weft.dev/weft/internal/keys/nodeid"
)

const (
	// lookEvery is how often a Renewer looks at the certificate: somebody else may have replaced
	// it.
	lookEvery = 10 * time.Minute
	// retryMax bounds how long it waits after a failure.
	retryMax = time.Hour
)

// Renewer keeps a node's certificate fresh, for as long as it came from `weft ca join`.
type Renewer struct {
	Paths nodeid.Paths
	// Server is where to renew; "" is where the certificate came from.
	Server string
	Log    *slog.Logger
	// Renewed is told how each attempt went; may be nil.
	Renewed func(err error)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// RenewIfDue renews once two thirds of the certificate's life are over. A certificate whose files
// do not say where it is renewed is left to whoever made it.
func (r *Renewer) RenewIfDue(ctx context.Context) (renewed bool, err error) {
	server := r.Server
	if server == "" {
		if server, err = RenewalServer(r.Paths); err != nil || server == "" {
			return false, err
		}
	}
	files, err := nodeid.NewFiles(r.Paths)
	if err != nil {
		return false, err
	}
	cert, err := files.Certificate(ctx)
	if err != nil {
		return false, err
	}
	now := time.Now
	if r.Now != nil {
		now = r.Now
	}
	if now().Before(nodeid.RenewAfter(cert.Leaf)) {
		return false, nil
	}
	_, err = Renew(ctx, r.Paths, server)
	return err == nil, err
}

// Run renews in time until ctx is done. After a failure it tries again, later and later.
func (r *Renewer) Run(ctx context.Context) {
	log := r.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	wait := time.Duration(0)
	for retry := time.Minute; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		renewed, err := r.RenewIfDue(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			wait, retry = jitter(lookEvery), time.Minute
		case errors.Is(err, nodeid.ErrNoCertificate):
			// Not there yet: somebody will join.
			wait = jitter(lookEvery)
		default:
			log.Warn("the node's certificate could not be renewed", "err", err, "again", retry)
			wait, retry = jitter(retry), min(2*retry, retryMax)
		}
		if renewed {
			log.Info("the node's certificate was renewed", "cert", r.Paths.Cert)
		}
		if r.Renewed != nil && (renewed || err != nil) {
			r.Renewed(err)
		}
	}
}

// jitter keeps nodes that were started together from asking together: a wait of three to five
// quarters.
func jitter(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }
