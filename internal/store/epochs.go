package store

import (
	"errors"

	"weft.dev/weft/api/v1alpha1"
)

// ErrExists is returned for an object to be made that is there already.
var ErrExists = errors.New("exists already")

// ErrChanged is returned for an object to be replaced that is gone, or another one by now.
var ErrChanged = errors.New("changed meanwhile")

// EpochStore is where epochs live. Package dir implements it beside Store.
type EpochStore interface {
	// Epochs reads every good epoch now, by number. The error is for epochs that
	// cannot be read at all: none of them is told from no answer.
	Epochs() ([]*v1alpha1.Epoch, error)
	// CreateEpoch makes an epoch, whole or not at all, and for one caller only: all
	// others get ErrExists.
	CreateEpoch(*v1alpha1.Epoch) error
	// ReplaceEpoch puts an epoch in the place of the one with the same number, whole or not at all,
	// if that holds the wrapped key old; else ErrChanged. One that is deleted meanwhile stays
	// deleted.
	ReplaceEpoch(epoch *v1alpha1.Epoch, old []byte) error
	// DeleteEpoch removes the epoch with this number; none is no error.
	DeleteEpoch(number uint64) error
}
