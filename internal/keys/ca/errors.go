package ca

import (
	"errors"
	"fmt"

	"weft.dev/weft/internal/keys/nodeid"
)

// Kinds of refusals; test with errors.Is.
var (
	ErrTokenMalformed = errors.New("this is not a token")
	ErrTokenUnknown   = errors.New("the authority does not know this token")
	ErrTokenUsed      = errors.New("the token was used already")
	ErrTokenExpired   = errors.New("the token has expired")
	ErrPin            = errors.New("the server is not the authority that made the token")
	ErrSuperseded     = errors.New("a newer certificate was signed for this node: if it was not joined anew, somebody else has its key")
	ErrRequest        = errors.New("the certificate request is wrong")
	ErrServer         = errors.New("the authority could not do it")
	ErrExists         = errors.New("there is a certificate already")
)

// codes are the kinds of refusals on the wire.
var codes = []struct {
	code   string
	kind   error
	status int
}{
	{"token_unknown", ErrTokenUnknown, 403},
	{"token_used", ErrTokenUsed, 403},
	{"token_expired", ErrTokenExpired, 403},
	{"superseded", ErrSuperseded, 403},
	{"wrong_node", nodeid.ErrWrongNode, 403},
	{"no_certificate", nodeid.ErrNoCertificate, 401},
	{"certificate_expired", nodeid.ErrExpired, 403},
	{"certificate_foreign", nodeid.ErrForeign, 403},
	{"certificate", nodeid.ErrNotNode, 403},
	{"request", ErrRequest, 400},
}

// answer is what the server says.
type answer struct {
	Cert   string `json:"cert,omitempty"`
	Bundle string `json:"bundle,omitempty"`
	Code   string `json:"code,omitempty"`
	Error  string `json:"error,omitempty"`
}

// refusal puts an error on the wire: its kind, not what the authority knows besides.
func refusal(err error) (int, answer) {
	for _, known := range codes {
		if errors.Is(err, known.kind) {
			return known.status, answer{Code: known.code, Error: known.kind.Error()}
		}
	}
	return 500, answer{Code: "server", Error: ErrServer.Error()}
}

// refused makes an error of a refusal.
func refused(a answer) error {
	for _, known := range codes {
		if a.Code == known.code {
			return fmt.Errorf("refused by the authority: %w", known.kind)
		}
	}
	return fmt.Errorf("refused by the authority: %w (its log says why)", ErrServer)
}
