package netns_test

import (
	"os"
	"sync"
	"testing"

	"weft.dev/weft/internal/netns"
	"weft.dev/weft/internal/netns/nettest"
)

// TestMainThreadStays is inside another network namespace with more threads at once than the
// process had before: /proc/self/ns/net, by which others tell this process's own, stays.
func TestMainThreadStays(t *testing.T) {
	path := nettest.New(t, "main-thread")
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	const many = 64
	var inside, done sync.WaitGroup
	inside.Add(many)
	leave := make(chan struct{})
	for range many {
		done.Go(func() {
			arrived := sync.OnceFunc(inside.Done)
			defer arrived()
			err := netns.Do(path, func() error {
				arrived()
				<-leave
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	inside.Wait()
	now, err := os.Stat("/proc/self/ns/net")
	close(leave)
	done.Wait()
	if err != nil || !os.SameFile(own, now) {
		t.Errorf("the main thread is in another network namespace (%v)", err)
	}
}
