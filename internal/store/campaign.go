package store

import (
	"context"
	"math/rand/v2"
	"time"
)

// campaignPause is how long a candidate waits before it tries again.
const campaignPause = time.Second

// Campaign tries to become the leader until that succeeds or ctx ends. What keeps it from even
// trying is told to trouble, which may be nil.
func Campaign(ctx context.Context, try func(context.Context) (won bool, err error),
	trouble func(error)) error {
	for {
		won, err := try(ctx)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if trouble != nil {
			trouble(err)
		}
		if won {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(campaignPause + rand.N(campaignPause/2)):
		}
	}
}
