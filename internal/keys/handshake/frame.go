package handshake

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"weft.dev/weft/internal/keys/schedule"
)

// Types of frames.
const (
	typeHello    = "hello"
	typeAgree    = "agree"
	typeBusy     = "busy"
	typeRefuse   = "refuse"
	typeRXReady  = "rx_ready"
	typeSwitched = "tx_switched"
	typeDone     = "done"
)

// maxText bounds what a peer may say in a REFUSE.
const maxText = 300

// fingerprint is an ID on the wire: 16 hexadecimal digits, because not every JSON reader keeps 64
// bits of a number.
type fingerprint uint64

// MarshalJSON implements json.Marshaler.
func (f fingerprint) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, `"%016x"`, uint64(f)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *fingerprint) UnmarshalJSON(text []byte) error {
	digits, err := strconv.Unquote(string(text))
	if err != nil || len(digits) != 16 {
		return errors.New("a fingerprint is a string of 16 hexadecimal digits")
	}
	value, err := strconv.ParseUint(digits, 16, 64)
	if err != nil {
		return errors.New("a fingerprint is a string of 16 hexadecimal digits")
	}
	*f = fingerprint(value)
	return nil
}

// frame is everything that the two ends say to each other. Nothing in it is secret.
type frame struct {
	Type  string `json:"type"`
	Hello *hello `json:"hello,omitempty"`
	// ID is the direction's fingerprint, in RX_READY and TX_SWITCHED.
	ID fingerprint `json:"id,omitzero"`
	// Code and Text say why, in REFUSE.
	Code string `json:"code,omitempty"`
	Text string `json:"text,omitempty"`
}

// hello is the first frame of each end.
type hello struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	Epoch   uint64 `json:"epoch"`
	Lanes   int    `json:"lanes"`
	// TX and RX are State's.
	TX fingerprint `json:"txID"`
	RX fingerprint `json:"rxID"`
	// Offer is the fingerprint of the keys that this session gives for the direction towards the
	// one who says HELLO. Only who has the same data-encryption key can say it, so different keys
	// come to light before anything is installed.
	Offer fingerprint `json:"offer"`
}

// writeFrame writes a frame in one piece.
func writeFrame(w io.Writer, f *frame) error {
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode %s: %w", f.Type, err)
	}
	if len(text) > MaxFrame {
		return fmt.Errorf("encode %s: %d bytes, more than %d", f.Type, len(text), MaxFrame)
	}
	message := append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	_, err = w.Write(message)
	return err
}

// readFrame reads one frame and holds it to its type. What is wrong with its contents is an
// ErrProtocol.
func readFrame(r io.Reader) (*frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 || size > MaxFrame {
		return nil, fmt.Errorf("%w: a frame of %d bytes, want 1 to %d", ErrProtocol, size, MaxFrame)
	}
	// Grown as the bytes come: a length alone must not cost memory.
	text, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return nil, err
	}
	if len(text) < int(size) {
		return nil, io.ErrUnexpectedEOF
	}
	return decodeFrame(text)
}

// decodeFrame reads a frame's JSON. Unknown fields are let pass, so that a later version can say
// more.
func decodeFrame(text []byte) (*frame, error) {
	var f frame
	decoder := json.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&f); err != nil {
		return nil, fmt.Errorf("%w: not a frame: %w", ErrProtocol, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the frame's JSON", ErrProtocol)
	}
	if wrong := f.check(); wrong != "" {
		return nil, fmt.Errorf("%w: %s", ErrProtocol, wrong)
	}
	return &f, nil
}

// check says what does not belong into a frame of that type, or is missing from it.
func (f *frame) check() string {
	wantID := f.Type == typeRXReady || f.Type == typeSwitched
	switch {
	case f.Type == typeHello && f.Hello == nil:
		return "hello without its fields"
	case f.Type != typeHello && f.Hello != nil:
		return fmt.Sprintf("%.20q with the fields of hello", f.Type)
	case wantID != (f.ID != 0):
		return fmt.Sprintf("%.20q with id %016x", f.Type, uint64(f.ID))
	case f.Type != typeRefuse && (f.Code != "" || f.Text != ""):
		return fmt.Sprintf("%.20q with a reason", f.Type)
	}
	switch f.Type {
	case typeHello:
		return f.Hello.check()
	case typeRefuse:
		f.Code, f.Text = printable(f.Code), printable(f.Text)
		return ""
	case typeAgree, typeBusy, typeRXReady, typeSwitched, typeDone:
		return ""
	}
	return fmt.Sprintf("a frame of type %.20q", f.Type)
}

func (h *hello) check() string {
	switch {
	case h.Version != Version:
		return fmt.Sprintf("it speaks version %d, this node version %d: update the older of the two", h.Version, Version)
	case h.Node == "" || len(h.Node) > 253:
		return fmt.Sprintf("hello from node %.20q", h.Node)
	case h.Epoch == 0:
		return "hello for epoch 0"
	case h.Lanes < 1 || h.Lanes > schedule.MaxLanes:
		return fmt.Sprintf("hello with %d lanes, want 1 to %d", h.Lanes, schedule.MaxLanes)
	case h.Offer == 0:
		return "hello without an offer"
	}
	return ""
}

// printable makes what a peer says fit for a log line.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}
