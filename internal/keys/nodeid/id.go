package nodeid

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"weft.dev/weft/api/v1alpha1"
)

// DefaultTrustDomain is what a cluster has that names none.
const DefaultTrustDomain = "weft.local"

const nodePath = "/node/"

// CheckTrustDomain says what is wrong with a trust domain's name.
func CheckTrustDomain(name string) error {
	td, err := spiffeid.TrustDomainFromString(name)
	if err != nil {
		return fmt.Errorf("trust domain %q: %w", name, err)
	}
	if td.Name() != name {
		return fmt.Errorf("trust domain %q: give only the name, as in %q", name, td.Name())
	}
	return nil
}

// URI is the SPIFFE ID of a node.
func URI(trustDomain, node string) (*url.URL, error) {
	if err := CheckTrustDomain(trustDomain); err != nil {
		return nil, err
	}
	if wrong := v1alpha1.CheckName(node); wrong != "" {
		return nil, fmt.Errorf("node %s", wrong)
	}
	return &url.URL{Scheme: "spiffe", Host: trustDomain, Path: nodePath + node}, nil
}

// Parse takes a node's SPIFFE ID apart. The error is of the kinds ErrNotNode and nothing else.
func Parse(uri *url.URL) (trustDomain, node string, err error) {
	id, err := spiffeid.FromURI(uri)
	if err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrNotNode, err)
	}
	name, found := strings.CutPrefix(id.Path(), nodePath)
	if !found || v1alpha1.CheckName(name) != "" {
		return id.TrustDomain().Name(), "", fmt.Errorf("%w: %q, want spiffe://%s%sNAME", ErrNotNode,
			id, id.TrustDomain().Name(), nodePath)
	}
	return id.TrustDomain().Name(), name, nil
}
