package store

import (
	"errors"

	"weft.dev/weft/api/v1alpha1"
)

// ErrNotFound is returned for an object to be deleted that is not there.
var ErrNotFound = errors.New("not found")

// Editor is a Store in which people's objects are put and deleted one by one.
type Editor interface {
	Store
	// PutObject writes an object in place of an earlier one with its key, whole or not at all. It
	// does not look whether the object fits with the rest.
	PutObject(o v1alpha1.Object) error
	// DeleteObject removes an object; ErrNotFound if there is none.
	DeleteObject(kind, key string) error
}
