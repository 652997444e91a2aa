package kek

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/url"
)

// withBinding puts a hash of the binding behind a DEK, for providers whose ciphertext cannot carry
// additional data: what the KMS seals says itself what it is for.
func withBinding(dek []byte, bind Binding) []byte {
	sum := sha256.Sum256(bind.additionalData())
	return append(append(make([]byte, 0, len(dek)+len(sum)), dek...), sum[:]...)
}

// cutBinding checks what withBinding added and returns the DEK; the rest of plain is zeroed.
func cutBinding(plain []byte, bind Binding) ([]byte, error) {
	defer clear(plain)
	sum := sha256.Sum256(bind.additionalData())
	if len(plain) != DEKSize+len(sum) {
		return nil, &Error{Kind: ErrCorrupt,
			Err: fmt.Errorf("it holds %d bytes, not %d", len(plain), DEKSize+len(sum))}
	}
	if subtle.ConstantTimeCompare(plain[DEKSize:], sum[:]) != 1 {
		return nil, &Error{Kind: ErrWrongBinding,
			Err: errors.New("what the KMS opened was made for another cluster or epoch")}
	}
	return append([]byte(nil), plain[:DEKSize]...), nil
}

// endpointParam returns the endpoint parameter: an https URL, or http to this host itself, since
// DEKs and tokens go over it.
func endpointParam(query url.Values) (string, error) {
	raw := query.Get("endpoint")
	if raw == "" {
		return "", nil
	}
	return raw, checkEndpoint("keys.kek: endpoint", raw)
}

func checkEndpoint(field, raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return configError(field, "is not an https URL",
			"write it as https://HOST[:PORT], escaped if it is in a query")
	case u.User != nil:
		return configError(field, "holds a user or password", "take it out")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return configError(field, "would send keys in cleartext",
			"use https; http is for this host's own loopback only")
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
