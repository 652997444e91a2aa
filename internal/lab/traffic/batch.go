package traffic

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// BatchSize is how many messages one call of a Batch carries.
const BatchSize = 64

// mmsghdr is struct mmsghdr of sendmmsg(2) on 64-bit machines.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   uint32
}

// Batch is what one sendmmsg or recvmmsg carries, and the memory that it points to.
type Batch struct {
	Data    [BatchSize][]byte
	headers [BatchSize]mmsghdr
	vectors [BatchSize]unix.Iovec
}

// NewBatch makes a batch of messages of one size.
func NewBatch(size int) *Batch {
	b := &Batch{}
	for i := range b.headers {
		b.Data[i] = make([]byte, size)
		b.vectors[i] = unix.Iovec{Base: &b.Data[i][0], Len: uint64(size)}
		b.headers[i].hdr = unix.Msghdr{Iov: &b.vectors[i], Iovlen: 1}
	}
	return b
}

// Send sends the batch on a connected or bound socket and returns how many messages the kernel
// took.
func (b *Batch) Send(fd int) (int, error) { return b.call(unix.SYS_SENDMMSG, fd, 0) }

// Receive returns how many messages came: one at least, and those that are there already.
func (b *Batch) Receive(fd int) (int, error) {
	return b.call(unix.SYS_RECVMMSG, fd, unix.MSG_WAITFORONE)
}

func (b *Batch) call(trap uintptr, fd, flags int) (int, error) {
	n, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&b.headers[0])),
		BatchSize, uintptr(flags), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
