package kek

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// Versions of the envelope around a provider's ciphertext.
const (
	blobFormat = 2
	// untimedFormat does not bind the epoch's times. It is still read: epochs outlive an upgrade.
	untimedFormat = 1
)

// maxBlob bounds what Unwrap reads: many times what any provider makes.
const maxBlob = 16 << 10

// envelope is a wrapped DEK as published. All but Ciphertext only serves to say what is wrong
// before the KMS is asked, and to let a person see what a blob is: what binds the DEK to its
// cluster and epoch is inside the ciphertext, and a forged field here only makes the unwrap fail.
type envelope struct {
	Format     int    `json:"format"`
	Provider   string `json:"provider"`
	Cluster    string `json:"cluster"`
	Epoch      uint64 `json:"epoch"`
	Created    int64  `json:"created,omitempty"` // milliseconds since 1970
	Expires    int64  `json:"expires,omitempty"`
	Version    string `json:"version,omitempty"`
	Ciphertext []byte `json:"ciphertext"`
}

func encodeBlob(provider, version string, bind Binding, ciphertext []byte) ([]byte, error) {
	e := envelope{Format: bind.format(), Provider: provider, Cluster: bind.Cluster,
		Epoch: bind.Epoch, Version: version, Ciphertext: ciphertext}
	if bind.timed() {
		e.Created, e.Expires = bind.Created.UnixMilli(), bind.Expires.UnixMilli()
	}
	blob, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode wrapped key: %w", err)
	}
	return blob, nil
}

// decodeBlob reads an envelope and refuses it by name if it is not for this provider and binding.
func decodeBlob(provider string, bind Binding, blob []byte) (envelope, error) {
	var e envelope
	if len(blob) > maxBlob {
		return e, &Error{Kind: ErrCorrupt,
			Err: fmt.Errorf("it has %d bytes, more than %d", len(blob), maxBlob)}
	}
	dec := json.NewDecoder(bytes.NewReader(blob))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		return e, &Error{Kind: ErrCorrupt,
			Err: fmt.Errorf("it is not an envelope of Weft: %w", err)}
	}
	if dec.More() {
		return e, &Error{Kind: ErrCorrupt, Err: fmt.Errorf("something follows the envelope")}
	}
	switch {
	case e.Format != blobFormat && e.Format != untimedFormat:
		return e, &Error{Kind: ErrCorrupt,
			Err: fmt.Errorf("its format is %d, this version of Weft reads %d and %d", e.Format,
				untimedFormat, blobFormat)}
	case e.Provider != provider:
		return e, &Error{Kind: ErrWrongKEK,
			Err: fmt.Errorf("the blob was wrapped by %q, keys.kek is %q", e.Provider, provider)}
	case e.Cluster != bind.Cluster || e.Epoch != bind.Epoch:
		return e, &Error{Kind: ErrWrongBinding,
			Err: fmt.Errorf("the blob is for epoch %d of cluster %q, not for epoch %d of %q",
				e.Epoch, e.Cluster, bind.Epoch, bind.Cluster)}
	case e.Format == blobFormat &&
		(!bind.timed() || e.Created != bind.Created.UnixMilli() ||
			e.Expires != bind.Expires.UnixMilli()):
		return e, &Error{Kind: ErrWrongBinding,
			Err: fmt.Errorf("the blob is for an epoch from %s to %s, not from %s to %s: the object was changed",
				millis(e.Created), millis(e.Expires), millis(bind.Created.UnixMilli()),
				millis(bind.Expires.UnixMilli()))}
	case len(e.Ciphertext) == 0:
		return e, &Error{Kind: ErrCorrupt, Err: fmt.Errorf("it has no ciphertext")}
	}
	return e, nil
}

func millis(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

// Untimed says whether a blob is an envelope of an older version of Weft, which does not bind its
// epoch's times.
func Untimed(blob []byte) bool {
	var e envelope
	return json.Unmarshal(blob, &e) == nil && e.Format == untimedFormat
}

// BindsTimes says whether a blob binds its epoch's times: that of an older version of Weft does
// not.
func BindsTimes(blob []byte) bool {
	var e envelope
	return json.Unmarshal(blob, &e) == nil && e.Format == blobFormat
}
