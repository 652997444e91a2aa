package bench

import (
	"context"
	"errors"
)

// addForwarder puts the bare XDP forwarder on the host side of the first pod's veth.
// It knows one way, to the far node, and passes all but UDP to the kernel.
func (b *harness) addForwarder() error {
	out, err := ifindex(b.wire[0])
	if err != nil {
		return err
	}
	src, err := hardwareAddr(b.wire[0])
	if err != nil {
		return err
	}
	dst, err := hardwareAddr(b.wire[1])
	if err != nil {
		return err
	}
	coll, err := loadPrograms(map[string]any{
		"forward_ifindex": uint32(out),
		"forward_macs":    [12]byte(append(append([]byte{}, dst...), src...)),
	})
	if err != nil {
		return err
	}
	defer coll.Close()
	l, err := attachXDP(port{b.near[0].HostNS, b.near[0].HostIf}, coll.Programs["bench_forward"])
	if err != nil {
		return err
	}
	rest := b.close
	b.close = func(ctx context.Context) error { return errors.Join(l.Close(), rest(ctx)) }
	return nil
}
