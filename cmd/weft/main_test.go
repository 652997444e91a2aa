package main

import (
	"bytes"
	"cmp"
	"os"
	"testing"
)

// TestOnlyUsedMethodsAreLinked: one package that calls methods by names it makes up as it runs, as
// templates do, and the linker keeps whatever has methods: a quarter of the binary. Then
// `go build -ldflags=-dumpdep ./cmd/weft` shows at <ReflectMethod> who does.
func TestOnlyUsedMethodsAreLinked(t *testing.T) {
	binary, err := os.ReadFile(cmp.Or(os.Getenv("WEFT_BINARY"), "../../build/weft"))
	if err != nil {
		t.Skip("needs build/weft: run `make build`")
	}
	const client = "github.com/aws/aws-sdk-go-v2/service/kms.(*Client)."
	if !bytes.Contains(binary, []byte(client+"Decrypt\x00")) {
		t.Error("the client of AWS KMS is not in the binary: this test looks for the wrong name")
	}
	if bytes.Contains(binary, []byte(client+"DeleteImportedKeyMaterial\x00")) {
		t.Error("the binary has methods that nothing calls")
	}
}
