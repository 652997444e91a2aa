package store

import (
	"errors"

	"weft.dev/weft/api/v1alpha1"
)

// ErrExists is returned for an object to be made that is there already.
var ErrExists = errors.New("exists already")

// EpochStore is where epochs live. Package dir implements it beside Store.
type EpochStore interface {
	// Epochs reads every good epoch now, by number. The error is for epochs that
	// cannot be read at all: none of them is told from no answer.
	Epochs() ([]*v1alpha1.Epoch, error)
	// CreateEpoch makes an epoch, whole or not at all, and for one caller only: all
	// others get ErrExists.
	CreateEpoch(*v1alpha1.Epoch) error
	// DeleteEpoch removes the epoch with this number; none is no error.
	DeleteEpoch(number uint64) error
}
