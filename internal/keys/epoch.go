package keys

import (
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/store"
)

// ErrExists is returned by EpochStore.CreateEpoch for a number that is taken.
var ErrExists = store.ErrExists

// Epoch is one data-encryption key's life, as it was published.
type Epoch struct {
	Number  uint64    `json:"number"`
	Created time.Time `json:"created"`
	// Expires is the hard TTL: nothing is sealed or opened with the epoch's keys after it.
	Expires time.Time `json:"expires"`
	// KEK is the URL of the key that wrapped this one, without secrets.
	KEK        string `json:"kek"`
	KEKVersion string `json:"kekVersion,omitempty"`
	Wrapped    []byte `json:"-"`
}

// ErrChanged is returned by EpochStore.ReplaceEpoch when what is to be replaced is not there.
var ErrChanged = store.ErrChanged

// EpochStore is where epochs are published.
type EpochStore interface {
	// Epochs lists them by number. The error is for no answer, which is not the same as none.
	Epochs() ([]Epoch, error)
	// CreateEpoch is exclusive: ErrExists if the number is taken.
	CreateEpoch(Epoch) error
	// ReplaceEpoch puts an epoch in the place of one of the same number, if that is there still and holds old.
	ReplaceEpoch(e Epoch, old []byte) error
	DeleteEpoch(number uint64) error
}

// NewEpochStore makes an EpochStore of a store's objects.
func NewEpochStore(objects store.EpochStore) EpochStore { return objectStore{objects} }

type objectStore struct{ objects store.EpochStore }

func (s objectStore) Epochs() ([]Epoch, error) {
	objects, err := s.objects.Epochs()
	if err != nil {
		return nil, err
	}
	out := make([]Epoch, len(objects))
	for i, o := range objects {
		out[i] = Epoch{
			Number: o.Spec.Number, Created: o.Spec.Created.Time, Expires: o.Spec.Expires.Time,
			KEK: o.Spec.KEK, KEKVersion: o.Spec.KEKVersion, Wrapped: o.Spec.Wrapped,
		}
	}
	return out, nil
}

func (s objectStore) CreateEpoch(e Epoch) error { return s.objects.CreateEpoch(object(e)) }

func (s objectStore) ReplaceEpoch(e Epoch, old []byte) error {
	return s.objects.ReplaceEpoch(object(e), old)
}

func object(e Epoch) *v1alpha1.Epoch {
	return &v1alpha1.Epoch{
		Metadata: v1alpha1.ObjectMeta{Name: v1alpha1.EpochName(e.Number)},
		Spec: v1alpha1.EpochSpec{
			Number: e.Number, Created: v1alpha1.Time{Time: e.Created}, Expires: v1alpha1.Time{Time: e.Expires},
			KEK: e.KEK, KEKVersion: e.KEKVersion, Wrapped: e.Wrapped,
		},
	}
}

func (s objectStore) DeleteEpoch(number uint64) error { return s.objects.DeleteEpoch(number) }

// binding is what an epoch's wrapped key is bound to.
func (e *Epoch) binding(cluster string) kek.Binding {
	return kek.Binding{Cluster: cluster, Epoch: e.Number, Created: e.Created, Expires: e.Expires}
}

// nibbles is how many epochs the SPI tells apart.
const nibbles = 15

// Nibble is an epoch's number as it stands in the SPI: 1 to 15.
func Nibble(number uint64) uint8 { return uint8(1 + (number-1)%nibbles) }
