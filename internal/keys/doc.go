// Package keys decides which keys seal a node's packets: it meets every peer in time for new
// keys, and moves from epoch to epoch without losing a packet.
//
// One epoch is one data-encryption key (DEK), published wrapped. Every pair of nodes
// moves on its own, as soon as both can read the newest one: package handshake gives
// both directions their keys, the receiver first; each sender switches when its receiver
// is ready; the old send keys stay for a moment, the old receive keys for the drain, and go. So
// at every moment a packet is sealed with keys that its receiver holds.
//
// Nothing about a pair is kept on disk. What was reached stands in the datapath's pinned
// maps, with the epoch's number and the keys' fingerprint; a new Manager reads it there
// and compares it with each peer in an exchange of its own. In doubt a direction gets new
// keys: no (key, nonce) is ever used twice.
//
// Three owners have a lock each: peers (here) has who there is, how far each is and the exchanges
// under way; epochs.Keeper the epochs and their DEKs; sadb.Table what is installed in the
// datapath. Manager has one loop that gives each its turn, and puts their status together.
//
// Locks are taken in this order, and none is held over calls of KMS, store, files, datapath or
// network but where it is said:
//
//	sadb.Table.Lock      one peer's writer lock, over the datapath's calls
//	Manager.filtering    over the port filter's calls
//	peers.mu
//	epochs.Keeper        its making and storeLock over the KMS's and the store's calls, then its mu
//	sadb.Table.mu
//	audit.Journal, clock.Signal, problems   which call nothing of keys
//
// making and storeLock are never taken under peers.mu, and a Keeper asks peers before it takes
// its mu.
package keys
