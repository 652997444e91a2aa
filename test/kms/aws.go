package kms

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awskms "github.com/aws/aws-sdk-go-v2/service/kms"
)

const (
	awsRegion  = "eu-central-1"
	awsAccount = "123456789012"
	awsRole    = "weft-node"
	awsAlias   = "alias/weft"
	awsTarget  = "TrentService."
)

// StartAWS starts moto, a real implementation of AWS's KMS, STS and IAM APIs. This node has a role
// through a projected service account token, as with IRSA on EKS: the SDK exchanges the token at
// STS. `make fetch` installs moto.
//
// What moto lacks is added by a proxy before it: the name of a key's current material (moto counts
// rotations), disabled keys, throttling, slowness.
func StartAWS(t testing.TB) *Counterpart {
	t.Helper()
	base := startMoto(t)
	ctx := context.Background()
	admin := awskms.New(awskms.Options{Region: awsRegion, BaseEndpoint: &base,
		Credentials: credentials.NewStaticCredentialsProvider("admin", "admin", "")})
	key, err := admin.CreateKey(ctx, &awskms.CreateKeyInput{Description: aws.String("weft's KEK")})
	if err != nil {
		t.Fatalf("create key: %v", err)
	}
	id := key.KeyMetadata.KeyId
	if _, err := admin.CreateAlias(ctx,
		&awskms.CreateAliasInput{AliasName: aws.String(awsAlias), TargetKeyId: id}); err != nil {
		t.Fatalf("create alias: %v", err)
	}
	var rotations atomic.Int64
	proxy := proxyTo(t, base)
	proxy.ModifyResponse = func(r *http.Response) error { return nameMaterial(r, rotations.Load()) }
	f := newFaults(proxy, awsOp)
	front := serveHTTP(t, f, nil)
	refuse := func(kind, message string) func(testing.TB) func() {
		return func(testing.TB) func() {
			body, _ := json.Marshal(map[string]string{"__type": kind, "message": message})
			return f.set(answer(http.StatusBadRequest,
				map[string]string{"Content-Type": "application/x-amz-json-1.1"}, string(body)))
		}
	}
	return &Counterpart{
		URL: "awskms:///" + awsAlias + "?region=" + awsRegion + "&endpoint=http://" + front.addr,
		Env: map[string]string{
			"AWS_ROLE_ARN":                "arn:aws:iam::" + awsAccount + ":role/" + awsRole,
			"AWS_WEB_IDENTITY_TOKEN_FILE": writeFile(t, "aws-token", "header.payload.signature"),
			"AWS_ROLE_SESSION_NAME":       "node-a", "AWS_ENDPOINT_URL_STS": base,
			"AWS_EC2_METADATA_DISABLED": "true", "HOME": t.TempDir(),
		},
		Rotate: func(t testing.TB) {
			if _, err := admin.RotateKeyOnDemand(ctx,
				&awskms.RotateKeyOnDemandInput{KeyId: id}); err != nil {
				t.Fatalf("rotate: %v", err)
			}
			rotations.Add(1)
		},
		Disable: refuse("DisabledException", aws.ToString(key.KeyMetadata.Arn)+" is disabled."),
		Deny: refuse("AccessDeniedException",
			"User: arn:aws:sts::"+awsAccount+":assumed-role/"+awsRole+
				"/node-a is not authorized to perform: kms:Decrypt on this resource"),
		Throttle: refuse("ThrottlingException",
			"You have exceeded the rate at which you may call KMS. Reduce the frequency of your calls."),
		Slow:  func(testing.TB) func() { return f.set(slowFault) },
		Down:  front.down,
		Calls: f.counts,
	}
}

func awsOp(r *http.Request) string {
	switch strings.TrimPrefix(r.Header.Get("X-Amz-Target"), awsTarget) {
	case "Encrypt":
		return "encrypt"
	case "Decrypt":
		return "decrypt"
	}
	return ""
}

// nameMaterial adds to DescribeKey's answer what moto leaves out.
func nameMaterial(r *http.Response, rotations int64) error {
	if r.Request.Header.Get("X-Amz-Target") != awsTarget+"DescribeKey" ||
		r.StatusCode != http.StatusOK {
		return nil
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("read moto's answer: %w", err)
	}
	var body map[string]map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		return fmt.Errorf("read moto's answer: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%v %d", body["KeyMetadata"]["KeyId"], rotations))
	body["KeyMetadata"]["CurrentKeyMaterialId"] = hex.EncodeToString(sum[:])
	if raw, err = json.Marshal(body); err != nil {
		return fmt.Errorf("write moto's answer: %w", err)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(raw)), int64(len(raw))
	r.Header.Set("Content-Length", fmt.Sprint(len(raw)))
	return nil
}

// startMoto runs moto's server in a process of its own and returns its address.
func startMoto(t testing.TB) string {
	t.Helper()
	server := motoServer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	var log lockedBuffer
	cmd := exec.Command(server, "-H", "127.0.0.1", "-p", port)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("start moto: %v", err)
	}
	exited := make(chan struct{})
	go func() { defer close(exited); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-exited })
	base := "http://127.0.0.1:" + port
	for {
		if r, err := http.Get(base + "/moto-api/data.json"); err == nil {
			_ = r.Body.Close()
			return base
		}
		select {
		case <-exited:
			t.Fatalf("moto ended: %s", log.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// motoRequirement is what scripts/fetch installs, for pip.
//
//go:embed moto.txt
var motoRequirement string

// motoServer is moto where scripts/fetch has put it. Tests get nothing from the network.
func motoServer(t testing.TB) string {
	t.Helper()
	_, version, _ := strings.Cut(strings.TrimSpace(motoRequirement), "==")
	server := filepath.Join(cacheDir(t), "moto-"+version, "bin", "moto_server")
	if out, err := exec.Command(server, "--help").CombinedOutput(); err != nil {
		t.Fatalf("needs moto %s, the AWS counterpart: run `make fetch`: %v: %s", version, err, out)
	}
	return server
}

// lockedBuffer is a process's output, read while it is still being written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
