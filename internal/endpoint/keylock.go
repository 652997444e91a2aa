package endpoint

import "sync"

// keyLocks is a mutex per name. The zero value is ready.
type keyLocks struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

type keyLock struct {
	sync.Mutex
	users int // holders and waiters; the entry goes with the last
}

// lock waits for key and returns its unlock.
func (k *keyLocks) lock(key string) func() {
	l := k.enter(key)
	l.Lock()
	return func() { l.Unlock(); k.leave(key, l) }
}

// tryLock is lock without waiting.
func (k *keyLocks) tryLock(key string) (func(), bool) {
	l := k.enter(key)
	if !l.TryLock() {
		k.leave(key, l)
		return nil, false
	}
	return func() { l.Unlock(); k.leave(key, l) }, true
}

func (k *keyLocks) enter(key string) *keyLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locks == nil {
		k.locks = map[string]*keyLock{}
	}
	l := k.locks[key]
	if l == nil {
		l = &keyLock{}
		k.locks[key] = l
	}
	l.users++
	return l
}

func (k *keyLocks) leave(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.locks, key)
	}
}
