// Package keys decides which keys seal a node's packets: it makes and unwraps epochs'
// data-encryption keys, meets every peer in time for new keys, and moves from epoch to
// epoch without losing a packet.
//
// One epoch is one data-encryption key (DEK), published wrapped. Every pair of nodes
// moves on its own, as soon as both can read the newest one: package handshake gives
// both directions their keys, the receiver first; each sender switches when its receiver
// is ready; the old receive keys stay for the drain and go. So at every moment a packet
// is sealed with keys that its receiver holds.
//
// Nothing about a pair is kept on disk. What was reached stands in the datapath's pinned
// maps, with the epoch's number and the keys' fingerprint; a new Manager reads it there
// and compares it with each peer in an exchange of its own. In doubt a direction gets new
// keys: no (key, nonce) is ever used twice.
package keys
