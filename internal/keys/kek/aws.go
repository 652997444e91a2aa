package kek

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/arn"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	gcaws "gocloud.dev/aws"
)

// awsParams are gocloud.dev's parameters for AWS that make sense here; context_NAME adds to the
// encryption context.
var awsParams = []string{"region", "profile", "role", "endpoint", "dualstack", "fips"}

// Names in the encryption context. Key policies and grants can ask for them with
// kms:EncryptionContext:weft-cluster.
const (
	awsClusterContext = "weft-cluster"
	awsEpochContext   = "weft-epoch"
	awsCreatedContext = "weft-created"
	awsExpiresContext = "weft-expires"
)

// awsKEK binds a DEK by KMS's encryption context. gocloud.dev's keeper is not used: it leaves the
// key out of Decrypt, so that KMS would open a blob made with any other key that this identity may
// use, and it does not tell the key's version.
type awsKEK struct {
	kms     *kms.Client
	sts     *sts.Client
	creds   aws.CredentialsProvider
	keyID   string
	context map[string]string
}

func openAWS(ctx context.Context, u *url.URL) (provider, error) {
	extra, query, err := awsContext(u)
	if err != nil {
		return nil, err
	}
	if err := allowParams(&url.URL{RawQuery: query.Encode()}, awsParams...); err != nil {
		return nil, err
	}
	keyID := strings.TrimPrefix(path.Join(u.Host, u.Path), "/")
	if keyID == "" {
		return nil, configError("keys.kek", "names no key",
			"write it as awskms:///alias/NAME?region=REGION or awskms:///ARN")
	}
	endpoint, err := endpointParam(query)
	if err != nil {
		return nil, err
	}
	query.Del("endpoint")
	if err := awsRegion(keyID, query); err != nil {
		return nil, err
	}
	cfg, err := gcaws.V2ConfigFromURLParams(ctx, query)
	if err != nil {
		return nil, &Error{Kind: ErrConfig, Subject: "keys.kek", Err: err,
			Fix: "see docs/kms/aws.md"}
	}
	if cfg.Region == "" {
		return nil, configError("keys.kek", "names no region and AWS_REGION is not set",
			"add ?region=REGION, or use the key's ARN")
	}
	client := kms.NewFromConfig(cfg, func(o *kms.Options) {
		o.Retryer = aws.NopRetryer{} // the caller type retries
		if endpoint != "" {
			o.BaseEndpoint = aws.String(endpoint)
		}
	})
	return &awsKEK{kms: client, sts: sts.NewFromConfig(cfg), creds: cfg.Credentials, keyID: keyID,
		context: extra}, nil
}

// awsContext takes context_NAME parameters out of a URL's query.
func awsContext(u *url.URL) (map[string]string, url.Values, error) {
	extra, query := map[string]string{}, u.Query()
	for name, values := range query {
		key, ok := strings.CutPrefix(name, "context_")
		if !ok {
			continue
		}
		if key == awsClusterContext || key == awsEpochContext || len(values) != 1 {
			return nil, nil, configError("keys.kek", fmt.Sprintf("has a wrong parameter %q", name),
				"use another name than Weft's own, and one value")
		}
		extra[key] = values[0]
		query.Del(name)
	}
	return extra, query, nil
}

// awsRegion takes the region from a key's ARN, and refuses another one in the URL.
func awsRegion(keyID string, query url.Values) error {
	if !arn.IsARN(keyID) {
		return nil
	}
	parsed, err := arn.Parse(keyID)
	if err != nil || parsed.Service != "kms" {
		return configError("keys.kek", fmt.Sprintf("%q is not the ARN of a KMS key", keyID),
			"use arn:aws:kms:REGION:ACCOUNT:key/ID or …:alias/NAME")
	}
	if region := query.Get("region"); region != "" && region != parsed.Region {
		return &Error{Kind: ErrWrongRegion,
			Err: fmt.Errorf("keys.kek has region=%s, but its key is in %s", region, parsed.Region),
			Fix: "take out region="}
	}
	query.Set("region", parsed.Region)
	return nil
}

func (a *awsKEK) encryptionContext(bind Binding) map[string]string {
	m := map[string]string{awsClusterContext: bind.Cluster,
		awsEpochContext: strconv.FormatUint(bind.Epoch, 10)}
	if bind.timed() {
		m[awsCreatedContext], m[awsExpiresContext] = millis(bind.Created.UnixMilli()), millis(bind.Expires.UnixMilli())
	}
	for k, v := range a.context {
		m[k] = v
	}
	return m
}

func (a *awsKEK) encrypt(ctx context.Context, dek []byte, bind Binding) ([]byte, string, error) {
	out, err := a.kms.Encrypt(ctx,
		&kms.EncryptInput{KeyId: &a.keyID, Plaintext: dek,
			EncryptionContext: a.encryptionContext(bind)})
	if err != nil {
		return nil, "", awsError(err)
	}
	version, err := a.version(ctx, aws.ToString(out.KeyId))
	return out.CiphertextBlob, version, err
}

// version asks for the key material in use, which Encrypt does not tell. An identity without
// kms:DescribeKey gets the key's ARN, which stays the same when the material is rotated.
func (a *awsKEK) version(ctx context.Context, keyARN string) (string, error) {
	out, err := a.kms.DescribeKey(ctx, &kms.DescribeKeyInput{KeyId: &keyARN})
	switch {
	case err == nil && out.KeyMetadata != nil &&
		aws.ToString(out.KeyMetadata.CurrentKeyMaterialId) != "":
		return *out.KeyMetadata.CurrentKeyMaterialId, nil
	case err == nil, errors.Is(awsError(err), ErrDenied):
		return keyARN, nil
	}
	return "", awsError(err)
}

func (a *awsKEK) decrypt(ctx context.Context, ciphertext []byte, _ string,
	bind Binding) ([]byte, error) {
	out, err := a.kms.Decrypt(ctx,
		&kms.DecryptInput{KeyId: &a.keyID, CiphertextBlob: ciphertext,
			EncryptionContext: a.encryptionContext(bind)})
	if err != nil {
		return nil, awsError(err)
	}
	return out.Plaintext, nil
}

func (a *awsKEK) identity(ctx context.Context) (Identity, error) {
	var id Identity
	creds, err := a.creds.Retrieve(ctx)
	if err != nil {
		return id, awsError(err)
	}
	id.Source = creds.Source
	out, err := a.sts.GetCallerIdentity(ctx, nil)
	if err != nil {
		return id, fmt.Errorf("ask STS who we are: %w", awsError(err))
	}
	id.Principal = aws.ToString(out.Arn)
	return id, nil
}

func (a *awsKEK) close() error { return nil }

var awsKinds = map[string]error{
	"ThrottlingException": ErrThrottled, "Throttling": ErrThrottled,
	"TooManyRequestsException": ErrThrottled, "RequestLimitExceeded": ErrThrottled,
	"LimitExceededException": ErrThrottled, "SlowDown": ErrThrottled,
	"AccessDeniedException": ErrDenied, "AccessDenied": ErrDenied,
	"NotAuthorizedException": ErrDenied, "InvalidGrantTokenException": ErrDenied,
	"UnrecognizedClientException": ErrCredentials, "InvalidSignatureException": ErrCredentials,
	"SignatureDoesNotMatch": ErrCredentials,
	"InvalidClientTokenId":  ErrCredentials, "ExpiredTokenException": ErrCredentials,
	"ExpiredToken": ErrCredentials, "RequestExpired": ErrCredentials,
	"IncompleteSignature": ErrCredentials, "MissingAuthenticationToken": ErrCredentials,
	"MissingAuthenticationTokenException": ErrCredentials,
	"InvalidIdentityToken":                ErrCredentials,
	"InvalidIdentityTokenException":       ErrCredentials,
	"IDPRejectedClaim":                    ErrCredentials, "AuthFailure": ErrCredentials,
	"DisabledException": ErrDisabled, "KMSInvalidStateException": ErrDisabled,
	"NotFoundException": ErrNotFound, "InvalidArnException": ErrConfig,
	"InvalidKeyUsageException": ErrConfig, "ValidationException": ErrConfig,
	"InvalidCiphertextException": ErrCorrupt, "IncorrectKeyException": ErrCorrupt,
	"KMSInternalException": ErrUnreachable, "DependencyTimeoutException": ErrUnreachable,
	"KeyUnavailableException": ErrUnreachable,
	"InternalFailure":         ErrUnreachable, "ServiceUnavailable": ErrUnreachable,
	"ServiceUnavailableException": ErrUnreachable,
}

// awsError gives an SDK's error its kind.
func awsError(err error) error {
	if err == nil {
		return nil
	}
	e := &Error{Kind: awsKind(err), Err: err}
	if e.Kind == nil {
		return err
	}
	msg := err.Error()
	switch {
	case e.Kind == ErrNotFound && strings.Contains(msg, "Invalid arn"):
		e.Kind = ErrWrongRegion
	case e.Kind == ErrDenied && strings.Contains(msg, "ciphertext refers to"):
		e.Fix = "check that every node's keys.kek names the same key in the same region, and that this node's identity may kms:Decrypt with it"
	}
	return e
}

func awsKind(err error) error {
	service := innermostService(err)
	var api smithy.APIError
	if errors.As(err, &api) {
		if kind, ok := awsKinds[api.ErrorCode()]; ok {
			if kind == ErrDenied && service == "STS" {
				return ErrCredentials // the role does not trust this identity
			}
			return kind
		}
	}
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) {
		switch status := response.HTTPStatusCode(); {
		case status == 429:
			return ErrThrottled
		case status >= 500:
			return ErrUnreachable
		case status == 403:
			return ErrDenied
		}
	}
	if service == "ec2imds" {
		return ErrCredentials // last in the chain: nothing else had any
	}
	if kind := kindOf(err); kind != nil {
		return kind
	}
	if strings.Contains(err.Error(), "get credentials") ||
		strings.Contains(err.Error(), "failed to refresh cached credentials") {
		return ErrCredentials
	}
	return nil
}

// innermostService names the service whose call failed: KMS itself, or the one that credentials
// were to come from.
func innermostService(err error) string {
	service := ""
	for {
		var op *smithy.OperationError
		if !errors.As(err, &op) {
			return service
		}
		service, err = op.Service(), op.Unwrap()
	}
}
