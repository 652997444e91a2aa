package datapath

import (
	"bytes"
	"os"
	"sync"
)

// expeditedRCU makes the kernel's grace periods short, at the price of an interrupt to every busy CPU
// (Documentation/admin-guide/kernel-parameters: rcupdate.rcu_expedited).
const expeditedRCU = "/sys/kernel/rcu_expedited"

// hurry shortens grace periods while an endpoint is attached or detached. Each TCX link waits for one
// with the kernel's network lock held: 10 to 20 ms, three times for a pod. The kernel itself
// expedites those of its own network changes (synchronize_net) for the same reason.
type hurry struct {
	mu    sync.Mutex
	users int
	ours  bool // we set it, so we clear it
}

// begin returns the function that ends the hurry. Where the setting cannot be changed, all just takes longer.
func (h *hurry) begin() func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users++
	if h.users == 1 {
		now, err := os.ReadFile(expeditedRCU)
		h.ours = err == nil && bytes.Equal(bytes.TrimSpace(now), []byte("0")) &&
			os.WriteFile(expeditedRCU, []byte("1"), 0o644) == nil
	}
	return h.end
}

func (h *hurry) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users--
	if h.users == 0 && h.ours {
		// Nothing depends on it: a failure leaves the kernel a little more eager.
		_ = os.WriteFile(expeditedRCU, []byte("0"), 0o644)
	}
}
