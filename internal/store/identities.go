package store

import "weft.dev/weft/api/v1alpha1"

// IdentityStore is where the numbers of workload identities are given out. Package dir
// implements it beside Store.
type IdentityStore interface {
	// Identities reads every good identity now.
	Identities() ([]*v1alpha1.Identity, error)
	// Identity reads one identity by its number, nil if there is none. An error is also
	// returned for one that is there and cannot be used: its number is taken.
	Identity(number uint32) (*v1alpha1.Identity, error)
	// CreateIdentity makes an identity, whole or not at all, and for one caller only:
	// all others get ErrExists.
	CreateIdentity(*v1alpha1.Identity) error
}
