package kms

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/kms/apiv1/kmspb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	googleKey   = "projects/loom/locations/europe-west3/keyRings/weft/cryptoKeys/kek"
	googleNode  = "weft-node@loom.iam.gserviceaccount.com"
	googleToken = "ya29.weft-test-token"
)

// google is Cloud KMS for one key: Encrypt and Decrypt with AES-256-GCM, versions and their states,
// permissions, checksums.
type google struct {
	kmspb.UnimplementedKeyManagementServiceServer
	mu             sync.Mutex
	versions       []googleVersion
	denied         bool
	fault          func(context.Context) error
	encrypts, decs int
}

type googleVersion struct {
	aead    cipher.AEAD
	enabled bool
}

// StartGoogle starts Cloud KMS and a metadata server that gives this node its identity, as on GKE
// with workload identity.
func StartGoogle(t testing.TB) *Counterpart {
	t.Helper()
	g := &google{}
	g.rotate(t)
	config, err := serverTLS()
	if err != nil {
		t.Fatal(err)
	}
	server := newSwitchable(t, func(l net.Listener) func() {
		s := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
		kmspb.RegisterKeyManagementServiceServer(s, g)
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		return func() { s.Stop(); <-done }
	})
	meta := serveHTTP(t, http.HandlerFunc(googleMetadata), nil)
	return &Counterpart{
		URL:    "gcpkms://" + googleKey + "?endpoint=https://" + server.addr,
		Env:    map[string]string{"GCE_METADATA_HOST": meta.addr, "HOME": t.TempDir()},
		Rotate: g.rotate,
		Disable: func(testing.TB) func() {
			g.enable(false)
			return func() { g.enable(true) }
		},
		Deny: func(testing.TB) func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.denied = true
			return func() { g.mu.Lock(); defer g.mu.Unlock(); g.denied = false }
		},
		Throttle: func(testing.TB) func() {
			return g.set(func(context.Context) error {
				return status.Error(codes.ResourceExhausted,
					"Quota exceeded for quota metric 'Cryptographic requests' and limit 'Cryptographic requests per minute'")
			})
		},
		Slow: func(testing.TB) func() {
			return g.set(func(ctx context.Context) error {
				select {
				case <-ctx.Done():
					return status.FromContextError(ctx.Err()).Err() // or the answer may win against the caller's deadline
				case <-time.After(slowness):
					return nil
				}
			})
		},
		Down:  server.down,
		Calls: func() (int, int) { g.mu.Lock(); defer g.mu.Unlock(); return g.encrypts, g.decs },
	}
}

// googleMetadata is what a pod on GKE asks for tokens.
func googleMetadata(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Metadata-Flavor", "Google")
	if r.Header.Get("Metadata-Flavor") != "Google" {
		http.Error(w, "Missing Metadata-Flavor:Google header.", http.StatusForbidden)
		return
	}
	account, ok := strings.CutPrefix(r.URL.Path,
		"/computeMetadata/v1/instance/service-accounts/default/")
	switch {
	case r.URL.Path == "/" || r.URL.Path == "/computeMetadata/v1/":
	case ok && account == "token":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": googleToken,
			"expires_in": 3599, "token_type": "Bearer"})
	case ok && account == "email":
		fmt.Fprint(w, googleNode)
	case r.URL.Path == "/computeMetadata/v1/project/project-id":
		fmt.Fprint(w, "loom")
	default:
		http.NotFound(w, r)
	}
}

func (g *google) set(f func(context.Context) error) (undo func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = f
	return func() { g.mu.Lock(); defer g.mu.Unlock(); g.fault = nil }
}

func (g *google) enable(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.versions {
		g.versions[i].enabled = on
	}
}

func (g *google) rotate(t testing.TB) {
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.versions = append(g.versions, googleVersion{aead: aead, enabled: true})
}

// admit is what stands before both operations: authentication, faults, the key's name, permission.
func (g *google) admit(ctx context.Context, op, name string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if auth := md.Get("authorization"); len(auth) != 1 || auth[0] != "Bearer "+googleToken {
		return status.Error(codes.Unauthenticated,
			"Request had invalid authentication credentials. Expected OAuth 2 access token")
	}
	g.mu.Lock()
	f, denied := g.fault, g.denied
	g.mu.Unlock()
	if f != nil {
		if err := f(ctx); err != nil {
			return err
		}
	}
	switch {
	case name != googleKey:
		return status.Errorf(codes.NotFound, "CryptoKey %s not found.", name)
	case denied:
		return status.Errorf(codes.PermissionDenied,
			"Permission 'cloudkms.cryptoKeyVersions.useTo%s' denied on resource '%s' (or it may not exist).", op, name)
	}
	return nil
}

func (v googleVersion) check(n int) error {
	if !v.enabled {
		return status.Errorf(codes.FailedPrecondition,
			"%s/cryptoKeyVersions/%d is not enabled, current state is: DISABLED.", googleKey, n+1)
	}
	return nil
}

// Encrypt seals with the newest version. The ciphertext starts with the version's number, as the
// service keeps it, too.
func (g *google) Encrypt(ctx context.Context,
	r *kmspb.EncryptRequest) (*kmspb.EncryptResponse, error) {
	if err := g.admit(ctx, "Encrypt", r.Name); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.encrypts++
	if !intact(r.PlaintextCrc32C, r.Plaintext) ||
		!intact(r.AdditionalAuthenticatedDataCrc32C, r.AdditionalAuthenticatedData) {
		return nil, status.Error(codes.InvalidArgument,
			"The checksum in field plaintext_crc32c did not match the data in field plaintext.")
	}
	n := len(g.versions) - 1
	v := g.versions[n]
	if err := v.check(n); err != nil {
		return nil, err
	}
	nonce := make([]byte, v.aead.NonceSize())
	_, _ = rand.Read(nonce)
	out := binary.BigEndian.AppendUint32(nil, uint32(n))
	out = v.aead.Seal(append(out, nonce...), nonce, r.Plaintext, r.AdditionalAuthenticatedData)
	return &kmspb.EncryptResponse{
		Name: fmt.Sprintf("%s/cryptoKeyVersions/%d", googleKey, n+1), Ciphertext: out,
		CiphertextCrc32C:                          crc(out),
		VerifiedPlaintextCrc32C:                   r.PlaintextCrc32C != nil,
		VerifiedAdditionalAuthenticatedDataCrc32C: r.AdditionalAuthenticatedDataCrc32C != nil,
	}, nil
}

// Decrypt opens with the version that sealed.
func (g *google) Decrypt(ctx context.Context,
	r *kmspb.DecryptRequest) (*kmspb.DecryptResponse, error) {
	if err := g.admit(ctx, "Decrypt", r.Name); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.decs++
	broken := status.Error(codes.InvalidArgument,
		"Decryption failed: verify that 'name' refers to the correct CryptoKey.")
	if len(r.Ciphertext) < 4 || !intact(r.CiphertextCrc32C, r.Ciphertext) {
		return nil, broken
	}
	n := int(binary.BigEndian.Uint32(r.Ciphertext))
	if n >= len(g.versions) {
		return nil, broken
	}
	v := g.versions[n]
	if err := v.check(n); err != nil {
		return nil, err
	}
	size := v.aead.NonceSize()
	if len(r.Ciphertext) < 4+size {
		return nil, broken
	}
	plain, err := v.aead.Open(nil, r.Ciphertext[4:4+size], r.Ciphertext[4+size:],
		r.AdditionalAuthenticatedData)
	if err != nil {
		return nil, broken
	}
	return &kmspb.DecryptResponse{Plaintext: plain, PlaintextCrc32C: crc(plain),
		UsedPrimary: n == len(g.versions)-1}, nil
}

func crc(data []byte) *wrapperspb.Int64Value {
	return wrapperspb.Int64(int64(crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))))
}

func intact(sum *wrapperspb.Int64Value, data []byte) bool {
	return sum == nil || sum.Value == crc(data).Value
}
