// Package encryptcheck proves that what travels between nodes is sealed. It captures frames
// on a wire, tells sealed packets from plain ones, and looks for markers: bytes that it, or
// a test, had pods send to each other. A marker that anybody can read on the wire disproves
// encryption; sealed packets and no marker prove it for the traffic that carried the markers.
//
// It knows nothing of the agent: what it is told are addresses, interfaces and a port.
package encryptcheck
