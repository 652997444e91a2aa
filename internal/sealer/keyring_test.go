package sealer

import (
	"crypto/aes"
	"crypto/cipher"
	"reflect"
	"runtime"
	"testing"
	"unsafe"

	"weft.dev/weft/internal/sealer/control"
)

// TestRemovedIsWiped: a key that is removed or replaced stays until the worker has left the frame
// in which it may use it, and is zero then.
func TestRemovedIsWiped(t *testing.T) {
	key := testKey(true, testSA)
	other := key
	other.Fingerprint++
	for name, change := range map[string]func(*keyring) error{
		"removed":  func(r *keyring) error { r.remove([]control.Held{key.Held()}); return nil },
		"replaced": func(r *keyring) error { return r.install([]control.Key{other}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newKeyring()
			defer r.wipe()
			if err := r.install([]control.Key{key}); err != nil {
				t.Fatal(err)
			}
			before := r.enter()
			held := before.out[testSA].secret
			done := make(chan error)
			go func() { done <- change(r) }()
			for r.current.Load() == before {
				runtime.Gosched()
			}
			for range 1000 { // it would have been wiped by now
				runtime.Gosched()
			}
			select {
			case <-done:
				t.Fatal("it is gone while the worker may use it")
			default:
			}
			if held.key != key {
				t.Error("it is wiped while the worker may use it")
			}
			r.leave()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if *held != (secret{}) {
				t.Error("something of it is left")
			}
		})
	}
}

// TestVaultReuses: what comes and goes takes no more memory each time.
func TestVaultReuses(t *testing.T) {
	r := newKeyring()
	defer r.wipe()
	for n := range 10 * secretsPerSlab {
		key := testKey(true, testSA)
		key.Fingerprint = uint64(n)
		if err := r.install([]control.Key{key}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.vault.slabs); n != 1 {
		t.Errorf("%d slabs for one key", n)
	}
}

// TestMoveAEAD: it works where it was moved to, nothing is left where it was, and what has pointers
// is not moved.
func TestMoveAEAD(t *testing.T) {
	key := testKey(true, testSA)
	block, err := aes.NewCipher(key.Key[:])
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := make([]byte, 12)
	want := aead.Seal(nil, nonce, []byte("text"), nil)
	before := reflect.ValueOf(aead)
	moved, err := moveAEAD(aead, make([]byte, 1024))
	if err != nil {
		t.Fatal(err)
	}
	if got := moved.Seal(nil, nonce, []byte("text"), nil); string(got) != string(want) {
		t.Errorf("% x, want % x", got, want)
	}
	for _, b := range unsafe.Slice((*byte)(before.UnsafePointer()), before.Type().Elem().Size()) {
		if b != 0 {
			t.Fatal("something is left where it was")
		}
	}
	wipeObject(block)
	if of := reflect.ValueOf(block); !of.Elem().IsZero() {
		t.Error("the block cipher is not wiped")
	}
	if _, err := moveAEAD(&pointing{at: []byte{1}}, make([]byte, 1024)); err == nil {
		t.Error("moved what has pointers")
	}
	if _, err := moveAEAD(moved, make([]byte, 10)); err == nil {
		t.Error("moved to where there is no room")
	}
}

type pointing struct {
	noCipher
	at []byte
}
