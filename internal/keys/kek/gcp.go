package kek

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"cloud.google.com/go/compute/metadata"
	kms "cloud.google.com/go/kms/apiv1"
	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

var gcpKeyName = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$`)

const gcpScope = "https://www.googleapis.com/auth/cloudkms"

// gcpKEK binds a DEK by Cloud KMS's additional authenticated data. gocloud.dev's keeper is not
// used: it cannot pass that, nor tell the key's version.
type gcpKEK struct {
	client *kms.KeyManagementClient
	creds  *gcpCredentials
	key    string
}

func openGCP(ctx context.Context, u *url.URL) (provider, error) {
	if err := allowParams(u, "endpoint"); err != nil {
		return nil, err
	}
	key := path.Join(u.Host, u.Path)
	if !gcpKeyName.MatchString(key) {
		return nil, configError("keys.kek", "names no Cloud KMS key",
			"write it as gcpkms://projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY")
	}
	endpoint, err := endpointParam(u.Query())
	if err != nil {
		return nil, err
	}
	creds := &gcpCredentials{}
	// gRPC's own pause between connections grows to two minutes: too long once the KMS is back. The
	// caller type has its own.
	reconnect := grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6,
			Jitter: 0.5, MaxDelay: 2 * time.Second},
		MinConnectTimeout: 5 * time.Second,
	}
	opts := []option.ClientOption{option.WithAuthCredentials(creds.lazy()),
		option.WithGRPCDialOption(grpc.WithConnectParams(reconnect))}
	if endpoint != "" {
		host, err := grpcTarget(endpoint)
		if err != nil {
			return nil, err
		}
		opts = append(opts, option.WithEndpoint(host))
	}
	client, err := kms.NewKeyManagementClient(ctx, opts...)
	if err != nil {
		return nil, &Error{Kind: ErrConfig, Subject: "keys.kek", Err: err,
			Fix: "see docs/kms/gcp.md"}
	}
	// The caller type sets timeouts and retries.
	client.CallOptions.Encrypt, client.CallOptions.Decrypt = nil, nil
	return &gcpKEK{client: client, creds: creds, key: key}, nil
}

// grpcTarget turns an endpoint URL into what gRPC wants. Plain HTTP is not for tokens, not even on
// loopback: gRPC refuses to send them.
func grpcTarget(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
		return "", configError("keys.kek: endpoint", "is not fit for Cloud KMS",
			"write it as https://HOST[:PORT]")
	}
	if u.Port() == "" {
		return u.Hostname() + ":443", nil
	}
	return u.Host, nil
}

func (g *gcpKEK) encrypt(ctx context.Context, dek []byte, bind Binding) ([]byte, string, error) {
	aad := bind.additionalData()
	out, err := g.client.Encrypt(ctx, &kmspb.EncryptRequest{
		Name: g.key, Plaintext: dek, PlaintextCrc32C: checksum(dek),
		AdditionalAuthenticatedData: aad, AdditionalAuthenticatedDataCrc32C: checksum(aad),
	})
	if err != nil {
		return nil, "", gcpError(err)
	}
	if !out.VerifiedPlaintextCrc32C || !out.VerifiedAdditionalAuthenticatedDataCrc32C ||
		out.CiphertextCrc32C.GetValue() != checksum(out.Ciphertext).GetValue() {
		return nil, "", &Error{Kind: ErrUnreachable,
			Err: errors.New("checksums differ: the request or the answer was damaged on the way")}
	}
	// Name is the version that was used: …/cryptoKeyVersions/N.
	return out.Ciphertext, path.Base(out.Name), nil
}

func (g *gcpKEK) decrypt(ctx context.Context, ciphertext []byte, _ string,
	bind Binding) ([]byte, error) {
	aad := bind.additionalData()
	out, err := g.client.Decrypt(ctx, &kmspb.DecryptRequest{
		Name: g.key, Ciphertext: ciphertext, CiphertextCrc32C: checksum(ciphertext),
		AdditionalAuthenticatedData: aad, AdditionalAuthenticatedDataCrc32C: checksum(aad),
	})
	if err != nil {
		return nil, gcpError(err)
	}
	if out.PlaintextCrc32C.GetValue() != checksum(out.Plaintext).GetValue() {
		clear(out.Plaintext)
		return nil, &Error{Kind: ErrUnreachable,
			Err: errors.New("checksums differ: the answer was damaged on the way")}
	}
	return out.Plaintext, nil
}

func checksum(data []byte) *wrapperspb.Int64Value {
	return wrapperspb.Int64(int64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))))
}

func (g *gcpKEK) identity(ctx context.Context) (Identity, error) {
	creds, err := g.creds.get()
	if err != nil {
		return Identity{}, err
	}
	if _, err := creds.Token(ctx); err != nil {
		return Identity{}, gcpError(err)
	}
	if email := jsonField(creds.JSON(), "client_email"); email != "" {
		return Identity{Principal: email, Source: "key file"}, nil
	}
	if raw := jsonField(creds.JSON(), "service_account_impersonation_url"); raw != "" {
		email, _, _ := strings.Cut(path.Base(raw), ":")
		return Identity{Principal: email, Source: "workload identity federation"}, nil
	}
	if audience := jsonField(creds.JSON(), "audience"); audience != "" {
		return Identity{Principal: audience, Source: "workload identity federation"}, nil
	}
	email, err := metadata.NewClient(nil).EmailWithContext(ctx, "default")
	if err != nil {
		return Identity{}, fmt.Errorf("ask the metadata server who we are: %w", err)
	}
	return Identity{Principal: email, Source: "metadata server"}, nil
}

func (g *gcpKEK) close() error {
	if err := g.client.Close(); err != nil {
		return fmt.Errorf("close Cloud KMS client: %w", err)
	}
	return nil
}

// gcpError gives a gRPC error its kind.
func gcpError(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	s, ok := status.FromError(err)
	if !ok {
		if kind := kindOf(err); kind != nil {
			return &Error{Kind: kind, Err: err}
		}
		return &Error{Kind: ErrCredentials,
			Err: err} // what is not from the KMS is from the token's source
	}
	msg := s.Message()
	e := &Error{Err: err}
	switch s.Code() {
	case codes.PermissionDenied:
		e.Kind = ErrDenied
	case codes.Unauthenticated:
		e.Kind = ErrCredentials
		if unreachableText(msg) {
			e.Kind = ErrUnreachable
		}
	case codes.NotFound:
		e.Kind = ErrNotFound
	case codes.ResourceExhausted:
		e.Kind = ErrThrottled
	case codes.FailedPrecondition:
		e.Kind = ErrDisabled
	case codes.InvalidArgument:
		e.Kind = ErrCorrupt
		if strings.Contains(msg, "misrouted") || strings.Contains(msg, "concerns location") {
			e.Kind = ErrWrongRegion
		}
	case codes.Canceled:
		return fmt.Errorf("%w: %w", context.Canceled, err)
	default:
		e.Kind = ErrUnreachable
	}
	return e
}
