package epochs

import (
	"time"

	"weft.dev/weft/api/v1alpha1"
	"weft.dev/weft/internal/keys/kek"
	"weft.dev/weft/internal/keys/secmem"
	"weft.dev/weft/internal/store"
)

// ErrExists is returned by Store.CreateEpoch for a number that is taken.
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

// ErrChanged is returned by Store.ReplaceEpoch when what is to be replaced is not there.
var ErrChanged = store.ErrChanged

// Store is where epochs are published.
type Store interface {
	// Epochs lists them by number. The error is for no answer, which is not the same as none.
	Epochs() ([]Epoch, error)
	// CreateEpoch is exclusive: ErrExists if the number is taken.
	CreateEpoch(Epoch) error
	// ReplaceEpoch puts an epoch in the place of one of the same number, if that is there still and
	// holds old.
	ReplaceEpoch(e Epoch, old []byte) error
	DeleteEpoch(number uint64) error
}

// NewStore makes a Store of a store's objects.
func NewStore(objects store.EpochStore) Store { return objectStore{objects} }

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
			Number: e.Number, Created: v1alpha1.Time{Time: e.Created},
			Expires: v1alpha1.Time{Time: e.Expires},
			KEK:     e.KEK, KEKVersion: e.KEKVersion, Wrapped: e.Wrapped,
		},
	}
}

func (s objectStore) DeleteEpoch(number uint64) error { return s.objects.DeleteEpoch(number) }

// Binding is what an epoch's wrapped key is bound to.
func (e *Epoch) Binding(cluster string) kek.Binding {
	return kek.Binding{Cluster: cluster, Epoch: e.Number, Created: e.Created, Expires: e.Expires}
}

// epoch is an epoch as this node has it.
type epoch struct {
	Epoch
	// born and deadline are when it was made and when it ends, by Clock.Boot: they were
	// computed when it was first seen and do not move with the wall clock.
	born, deadline time.Duration
	// end is the deadline and Options.ExtendTTL: no keys in use are extended beyond it.
	end time.Duration
	// answer is what the KMS has said when it was asked last whether this node may have the key
	// still, which was for keys that end at askedOf.
	answer  error
	askedOf time.Duration
	// told is the end of extended keys that was last told of.
	told time.Duration
	// rotateAt is when it is old enough for the next, by Clock.Boot.
	rotateAt time.Duration

	// dek is nil until it was unwrapped.
	dek       *secmem.Secret
	unwrapped time.Time
	err       error
	// refused: it is not to be used, whatever the KMS would say.
	refused   error
	failures  int
	nextTry   time.Duration
	running   bool // it is being unwrapped
	asked     bool // a peer waits for it
	warned    int  // percent of the hard TTL that were warned of
	withdrawn bool // from the store, while it was being unwrapped
}

func (e *epoch) forget() {
	e.dek.Release()
	e.dek = nil
}
