package kernels

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/datapath"
	"weft.dev/weft/internal/inet"
)

// TestXFRMAndUnfinished has a pod leave the checksums of its packets to the device, as sockets do,
// in TC: Weft finishes each before it seals it, and the mark of it is gone, or somebody would write
// into the ciphertext. Every size.
func TestXFRMAndUnfinished(t *testing.T) {
	for _, engine := range []string{"bpf", "kmod"} {
		t.Run(engine, func(t *testing.T) {
			w, x := newWeft(t, datapath.ModeTC, engine)
			must(t, unix.SetsockoptInt(w.pod.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
			for _, f := range families {
				w.outer(t, f.six)
				w.rekey(t, x, 0, 0)
				t.Run(f.name, func(t *testing.T) {
					send := func(p []byte) []byte { return unfinished(frame(gatewayMAC, podMAC, p)) }
					err := everySize(t, f.far, f.near, maxInner(f.six), func(p [][]byte) error {
						for i := range p {
							finish(p[i])
						}
						return cross(w.pod, x.inside, p, send)
					})
					if err != nil {
						t.Fatalf("%v; XFRM counts: %s; Weft: %s", err, x.errors(t), w.tells())
					}
					zero := newPacket(f.far, f.near, minLen(f.far)+5, 0)
					copy(payload(zero), []byte{0xff, 0xff, 0, 0, 0, 0})
					finish(zero)
					if sum := payload(zero)[sumAt:]; sum[0] != 0xff || sum[1] != 0xff {
						t.Fatalf("checksum %x: want one that is zero, sent as its other form",
							sum[:2])
					}
					if err := cross(w.pod, x.inside, [][]byte{zero}, send); err != nil {
						t.Errorf("a checksum of zero: %v", err)
					}
				})
			}
		})
	}
}

// sumAt is where in the payload the checksum is.
const sumAt = 2

func payload(packet []byte) []byte {
	if packet[0]>>4 == 6 {
		return packet[40:]
	}
	return packet[20:]
}

// finish puts the checksum of the payload into a packet that has room for it.
func finish(packet []byte) {
	p := payload(packet)
	if len(p) < sumAt+2 {
		return
	}
	field := p[sumAt : sumAt+2]
	clear(field)
	sum := inet.Checksum(p)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(field, sum)
}

// unfinished takes the checksum out of a frame again and says, by a struct virtio_net_hdr
// (linux/virtio_net.h) before it, that the device is to compute it.
func unfinished(f []byte) []byte {
	header, p := make([]byte, 10), payload(f[ethLen:])
	if len(p) >= sumAt+2 {
		clear(p[sumAt : sumAt+2])
		header[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(header[6:], uint16(len(f)-len(p)))
		binary.NativeEndian.PutUint16(header[8:], sumAt)
	}
	return append(header, f...)
}
