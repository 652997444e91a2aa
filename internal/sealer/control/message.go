package control

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A message is one SOCK_SEQPACKET datagram: 8 bytes of header, then count records of the
// operation's kind. All numbers are big endian. An answer may come in several messages, all but the
// last with the flag more. An answer that is no OK has the reason as text in place of records.
//
//	op 1 | status 1 | more 1 | 0 | count 4 | records
//
// Binary and of fixed size, so that no codec keeps copies of keys.
const headerLen = 8

// Op is an operation. The numbers are ABI between an agent and an older process.
type Op uint8

// The operations.
const (
	opHello Op = 1 + iota
	opConfigure
	opInstall
	opRemove
	opList
	opExport
	opBegin
	opStats
	opQuit
	ops
)

var opNames = [ops]string{
	"", "hello", "configure", "install", "remove", "list", "export", "begin", "stats", "quit",
}

// String is the operation's name in errors.
func (o Op) String() string {
	if o == 0 || o >= ops {
		return "unknown operation"
	}
	return opNames[o]
}

const (
	statusOK      = 0
	statusRefused = 1
)

const (
	heldLen   = 1 + 4 + 8
	keyLen    = heldLen + 32 + 4
	configLen = 2
	statsLen  = 8 * (2*(5+int(reasons)) + 1)
	helloLen  = 4 + 4 + 1 // and the build, as text

	maxMessage     = 16 << 10 // fits a socket's buffer on every machine
	keysPerMessage = (maxMessage - headerLen) / keyLen
	heldPerMessage = (maxMessage - headerLen) / heldLen
	maxBuild       = 256
)

var be = binary.BigEndian

var errLength = errors.New("message of the wrong length")

type header struct {
	op     Op
	status uint8
	more   bool
	count  int
}

func appendHeader(b []byte, h header) []byte {
	b = append(b, byte(h.op), h.status, 0, 0)
	if h.more {
		b[len(b)-2] = 1
	}
	return be.AppendUint32(b, uint32(h.count))
}

func decodeHeader(b []byte) (header, []byte, error) {
	if len(b) < headerLen {
		return header{}, nil, errLength
	}
	h := header{op: Op(b[0]), status: b[1], more: b[2] == 1, count: int(be.Uint32(b[4:]))}
	if b[2] > 1 || b[3] != 0 || h.status > statusRefused || h.op == 0 || h.op >= ops ||
		h.count > maxMessage {
		return header{}, nil, fmt.Errorf("message with an unknown header % x", b[:headerLen])
	}
	return h, b[headerLen:], nil
}

func appendHeld(b []byte, held Held) []byte {
	var out byte
	if held.Out {
		out = 1
	}
	b = be.AppendUint32(append(b, out), held.SA)
	return be.AppendUint64(b, held.Fingerprint)
}

func decodeHeld(b []byte) Held {
	return Held{Out: b[0] == 1, SA: be.Uint32(b[1:]), Fingerprint: be.Uint64(b[5:])}
}

func appendKey(b []byte, key *Key) []byte {
	b = append(appendHeld(b, key.Held()), key.Key[:]...)
	return append(b, key.Salt[:]...)
}

func decodeKey(b []byte, key *Key) {
	held := decodeHeld(b)
	key.Out, key.SA, key.Fingerprint = held.Out, held.SA, held.Fingerprint
	copy(key.Key[:], b[heldLen:])
	copy(key.Salt[:], b[heldLen+32:])
}

// validHeld says whether a record is one that appendHeld has written.
func validHeld(b []byte) bool { return b[0] <= 1 && be.Uint32(b[1:]) < MaxSA }

func appendConfig(b []byte, config Config) []byte { return be.AppendUint16(b, config.ESPPort) }

func appendHello(b []byte, hello Hello) []byte {
	b = be.AppendUint32(b, hello.Protocol)
	b = be.AppendUint32(b, uint32(hello.PID))
	var begun byte
	if hello.Begun {
		begun = 1
	}
	return append(append(b, begun), hello.Build[:min(len(hello.Build), maxBuild)]...)
}

func decodeHello(b []byte) (Hello, error) {
	if len(b) < helloLen || len(b) > helloLen+maxBuild {
		return Hello{}, errLength
	}
	return Hello{
		Protocol: be.Uint32(b), PID: int(be.Uint32(b[4:])), Begun: b[8] == 1,
		Build: string(b[helloLen:]),
	}, nil
}

func (d *Direction) fields() []*uint64 {
	f := []*uint64{&d.FramesIn, &d.FramesOut, &d.Packets, &d.Bytes, &d.WriteFailures}
	for i := range d.Refused {
		f = append(f, &d.Refused[i])
	}
	return f
}

func (s *Stats) fields() []*uint64 {
	return append(append(s.Seal.fields(), s.Open.fields()...), &s.Ignored)
}

func appendStats(b []byte, stats *Stats) []byte {
	for _, field := range stats.fields() {
		b = be.AppendUint64(b, *field)
	}
	return b
}

func decodeStats(b []byte) (Stats, error) {
	var stats Stats
	if len(b) != statsLen {
		return stats, errLength
	}
	for i, field := range stats.fields() {
		*field = be.Uint64(b[8*i:])
	}
	return stats, nil
}
