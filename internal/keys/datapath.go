package keys

import "time"

// SA is the key of one direction between this node and a peer, in one epoch and lane.
type SA struct {
	// Node is the peer's name.
	Node string
	// Out: this node seals with it; else it opens with it.
	Out bool
	// Epoch is 1 to 15, as in the SPI.
	Epoch uint8
	Lane  uint8
	// ID is the public fingerprint of the direction's keys.
	ID uint64
	// Number is the epoch's full number.
	Number uint64
	Key    [32]byte
	Salt   [4]byte
	// Expires is the hard TTL, which the datapath enforces without the agent.
	Expires time.Time
	// VMGeneration is the virtual machine's when the exchange began.
	VMGeneration uint64
}

// SAStatus is what the datapath tells of an SA.
type SAStatus struct {
	Node       string
	Out        bool
	Epoch      uint8
	Lane       uint8
	ID, Number uint64
	Engine     string
	// Counter is the last one sent, or the highest received.
	Counter            uint64
	Packets, Bytes     uint64
	Installed, Expires time.Time
}

// Sealing says which epoch a peer is sent with.
type Sealing struct {
	Node string
	// Epoch is 0 for none: packets are dropped as no_key.
	Epoch uint8
	ID    uint64
}

// Datapath holds the keys. What it holds outlives this process.
type Datapath interface {
	// InstallSA keeps the counter of an SA of the same ID and replaces one of another.
	// It zeroes Key and Salt before it returns.
	InstallSA(*SA) error
	// RemoveSAs removes all lanes; none is no error.
	RemoveSAs(node string, out bool, epoch uint8) error
	// ExtendSAs moves the end of all lanes to a later time; an error if they have not this ID or have ended.
	ExtendSAs(node string, out bool, epoch uint8, id uint64, until time.Time) error
	// SealWith switches what the node sends towards a peer, atomically for packets.
	// 0 stops sending, also to a peer that is gone.
	SealWith(node string, epoch uint8) error
	SAs() ([]SAStatus, error)
	Sealing() ([]Sealing, error)
	// VMGeneration counts the times that this virtual machine was resumed from a snapshot or copied. Keys of another
	// than the present one are refused, and void.
	VMGeneration() (uint64, error)
	// Lanes is how many lanes this node sends with.
	Lanes() int
}
