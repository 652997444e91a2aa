package sealer

import (
	"crypto/cipher"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/sealer/control"
)

// pages are memory outside of Go's heap that is never swapped, dumped or inherited: for all that
// has keys in it, and for packets in cleartext. It is zero.
func pages(size int) ([]byte, error) {
	page := unix.Getpagesize()
	size = (size + page - 1) / page * page
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate memory for secrets: %w", err)
	}
	err = unix.Mlock(b)
	if err != nil {
		err = fmt.Errorf("lock memory for secrets (raise RLIMIT_MEMLOCK): %w", err)
	}
	for _, advice := range []int{unix.MADV_DONTDUMP, unix.MADV_WIPEONFORK} {
		err = errors.Join(err, unix.Madvise(b, advice))
	}
	if err != nil {
		unix.Munmap(b) //nolint:errcheck // nothing is in it
		return nil, err
	}
	return b, nil
}

// release wipes pages and gives them back.
func release(b []byte) {
	clear(b)
	unix.Munmap(b) //nolint:errcheck // nothing is in it any more
}

// secret is a key and what the cipher has made of it.
type secret struct {
	key    control.Key
	cipher [1024]byte // at least the size of crypto/cipher's AEAD
}

const secretsPerSlab = 64

// vault has room for secrets, in pages that it keeps for the next ones.
type vault struct {
	mu    sync.Mutex
	free  []*secret
	slabs [][]byte
}

func (v *vault) get() (*secret, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.free) == 0 {
		const size = int(unsafe.Sizeof(secret{}))
		slab, err := pages(secretsPerSlab * size)
		if err != nil {
			return nil, err
		}
		v.slabs = append(v.slabs, slab)
		for i := range secretsPerSlab {
			v.free = append(v.free, (*secret)(unsafe.Pointer(&slab[i*size])))
		}
	}
	s := v.free[len(v.free)-1]
	v.free = v.free[:len(v.free)-1]
	return s, nil
}

// put wipes a secret that nobody uses any more.
func (v *vault) put(s *secret) {
	*s = secret{}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.free = append(v.free, s)
}

// close wipes and gives back all of them: nobody may use any any more.
func (v *vault) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, slab := range v.slabs {
		release(slab)
	}
	v.free, v.slabs = nil, nil
}

var errAEAD = errors.New("crypto/cipher's AEAD has another shape than this program knows: " +
	"it cannot be kept in locked memory")

// moveAEAD takes an AEAD out of Go's heap: its struct goes to b, where it works as before, and is
// zeroed where it was. Nothing of it may point anywhere, since the collector does not look here.
func moveAEAD(aead cipher.AEAD, b []byte) (cipher.AEAD, error) {
	v := reflect.ValueOf(aead)
	if v.Kind() != reflect.Pointer || !flat(v.Type().Elem()) ||
		v.Type().Elem().Size() > uintptr(len(b)) {
		return nil, errAEAD
	}
	size := v.Type().Elem().Size()
	from := unsafe.Slice((*byte)(v.UnsafePointer()), size)
	copy(b, from)
	clear(from)
	moved, ok := reflect.NewAt(v.Type().Elem(), unsafe.Pointer(&b[0])).Interface().(cipher.AEAD)
	if !ok {
		return nil, errAEAD
	}
	return moved, nil
}

// flat says whether a type has no pointers in it.
func flat(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if !flat(t.Field(i).Type) {
				return false
			}
		}
		return true
	case reflect.Array:
		return flat(t.Elem())
	default:
		return t.Kind() >= reflect.Bool && t.Kind() <= reflect.Complex128
	}
}

// wipeObject zeroes the struct that an interface points to, where that has no pointers: crypto/aes
// has no call for it.
func wipeObject(of any) {
	v := reflect.ValueOf(of)
	if v.Kind() == reflect.Pointer && flat(v.Type().Elem()) {
		clear(unsafe.Slice((*byte)(v.UnsafePointer()), v.Type().Elem().Size()))
	}
}
