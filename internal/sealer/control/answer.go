package control

import "fmt"

// Handler is what the process does about the operations.
type Handler interface {
	Hello() Hello
	Configure(Config) error
	// Install may not keep the slice, which is wiped afterwards.
	Install([]Key) error
	Remove([]Held)
	// Each calls f with every key, which f does not keep.
	Each(f func(*Key) error) error
	// Tap is the descriptor that Export hands out.
	Tap() int
	Begin() error
	Stats() Stats
	// Quit returns once no frame is read or written any more.
	Quit()
	// Leave ends the process, after the answer to Quit.
	Leave()
}

// Buffers is where an Answerer works: in locked memory, since keys are in all of them. No pointers
// are.
type Buffers struct {
	Request [maxMessage]byte // for the next one; Answer gets what is filled of it

	answer [maxMessage]byte
	keys   [keysPerMessage]Key
	held   [heldPerMessage]Held
}

// NoFD says that a message comes without a descriptor.
const NoFD = -1

// Answerer answers the requests of one connection.
type Answerer struct {
	Handler Handler
	// Send sends one message of the answer, with a descriptor or NoFD, and does not keep it.
	Send func(message []byte, fd int) error

	Buffers *Buffers
}

// Answer does what the request asks for and sends the answer. An error means that the connection is
// of no use any more: the request is none, or the answer was not taken. The request is wiped, and
// so is all that held a key.
func (a *Answerer) Answer(request []byte) error {
	defer clear(request)
	defer clear(a.Buffers.answer[:])
	h, records, err := decodeHeader(request)
	if err != nil {
		return err
	}
	if h.status != statusOK || h.more {
		return fmt.Errorf("%s: an answer where a request is due", h.op)
	}
	switch h.op {
	case opInstall, opRemove, opConfigure:
		return a.change(h, records)
	}
	if len(records) != 0 || h.count != 0 {
		return fmt.Errorf("%s: %w", h.op, errLength)
	}
	switch h.op {
	case opHello:
		return a.reply(h.op, appendHello(a.begin(), a.Handler.Hello()), 1, false, NoFD)
	case opStats:
		stats := a.Handler.Stats()
		return a.reply(h.op, appendStats(a.begin(), &stats), 1, false, NoFD)
	case opList:
		return a.each(h.op, heldPerMessage, NoFD, func(b []byte, key *Key) []byte {
			return appendHeld(b, key.Held())
		})
	case opExport:
		return a.each(h.op, keysPerMessage, a.Handler.Tap(), appendKey)
	case opBegin:
		return a.done(h.op, a.Handler.Begin())
	default: // opQuit
		a.Handler.Quit()
		defer a.Handler.Leave()
		return a.done(h.op, nil)
	}
}

// change are the operations that bring something.
func (a *Answerer) change(h header, records []byte) error {
	size := map[Op]int{opInstall: keyLen, opRemove: heldLen, opConfigure: configLen}[h.op]
	if len(records) != h.count*size || h.op == opConfigure && h.count != 1 {
		return fmt.Errorf("%s: %w", h.op, errLength)
	}
	if h.op == opConfigure {
		return a.done(h.op, a.Handler.Configure(Config{ESPPort: be.Uint16(records)}))
	}
	for i := range h.count {
		if !validHeld(records[i*size:]) {
			return fmt.Errorf("%s: record %d is none", h.op, i)
		}
	}
	if h.op == opRemove {
		held := a.Buffers.held[:h.count]
		defer clear(held)
		for i := range held {
			held[i] = decodeHeld(records[i*size:])
		}
		a.Handler.Remove(held)
		return a.done(h.op, nil)
	}
	keys := a.Buffers.keys[:h.count]
	defer clear(keys)
	for i := range keys {
		decodeKey(records[i*size:], &keys[i])
	}
	return a.done(h.op, a.Handler.Install(keys))
}

// each answers with a record of every key, in as many messages as it takes. The descriptor goes
// with the last one.
func (a *Answerer) each(op Op, most, fd int, record func([]byte, *Key) []byte) error {
	b, n := a.begin(), 0
	err := a.Handler.Each(func(key *Key) error {
		if n == most {
			if err := a.reply(op, b, n, true, NoFD); err != nil {
				return err
			}
			b, n = a.begin(), 0
		}
		b = record(b, key)
		n++
		return nil
	})
	if err != nil {
		return err
	}
	return a.reply(op, b, n, false, fd)
}

// begin leaves room for the header in front of an answer's records.
func (a *Answerer) begin() []byte { return a.Buffers.answer[:headerLen] }

func (a *Answerer) reply(op Op, message []byte, count int, more bool, fd int) error {
	appendHeader(message[:0], header{op: op, count: count, more: more})
	return a.Send(message, fd)
}

// done answers without records.
func (a *Answerer) done(op Op, err error) error {
	if err == nil {
		return a.reply(op, a.begin(), 0, false, NoFD)
	}
	message := appendHeader(a.Buffers.answer[:0], header{op: op, status: statusRefused})
	return a.Send(append(message, err.Error()...), NoFD)
}
