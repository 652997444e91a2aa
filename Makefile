# Weft. `make demo` and `make test` are all a new machine needs; both say first what they will install.
SHELL := /bin/bash
CLANG ?= clang-19
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

OBJ := internal/datapath/obj
BPF_HEADERS := $(wildcard bpf/lib/*.h)
# Programs that exist for both contexts, and those for one only.
BPF_BOTH := from_pod from_wire sa_test
BPF_TC := to_pod to_wire from_host pod_out
BPF_XDP := sa
OBJECTS := $(foreach h,$(BPF_BOTH),$(OBJ)/$(h)_xdp.o $(OBJ)/$(h)_tc.o) $(foreach h,$(BPF_TC),$(OBJ)/$(h)_tc.o) \
	$(foreach h,$(BPF_XDP),$(OBJ)/$(h)_xdp.o)
BENCH_OBJECT := internal/bench/obj/bench.o
BPF_CFLAGS := -O2 -g -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror -target bpf -mcpu=v3 \
	-fdebug-prefix-map=$(CURDIR)=. -I/usr/include/$(shell uname -m)-linux-gnu

GENERATED := internal/datapath/types_gen.go internal/datapath/reasons_gen.go docs/drop-reasons.md

.PHONY: all build deps deps-test bpf generate check check-generated demo test test-kms lint fmt clean
all: build

deps:
	@scripts/deps

deps-test:
	@scripts/deps test

bpf: $(OBJECTS) $(BENCH_OBJECT)

$(OBJ)/%_xdp.o: bpf/%.bpf.c $(BPF_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -DWEFT_XDP -c $< -o $@

$(OBJ)/%_tc.o: bpf/%.bpf.c $(BPF_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -c $< -o $@

$(BENCH_OBJECT): bpf/bench/bench.bpf.c $(wildcard bpf/bench/*.h)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -c $< -o $@

$(OBJ)/abi.o: bpf/abi.c $(BPF_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -c $< -o $@

generate: $(OBJ)/abi.o
	$(GO) run ./internal/gen -object $(OBJ)/abi.o -reasons bpf/lib/reasons.h \
		-types internal/datapath/types_gen.go -reasons-go internal/datapath/reasons_gen.go -reasons-doc docs/drop-reasons.md

# What the compiler derives from the C headers. Committed; `make check-generated` proves it current.
check-generated: generate
	@git diff --exit-code -- $(GENERATED) || { echo "generated files are out of date: run make generate and commit"; exit 1; }

build: deps bpf
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X weft.dev/weft/internal/version.Version=$(VERSION)" -o build/weft ./cmd/weft
	@ln -sf weft build/weft-cni

lint: deps bpf
	@test -z "$$(gofmt -l .)" || { echo "not gofmt'ed:"; gofmt -l .; exit 1; }
	clang-format-19 --dry-run --Werror $(wildcard bpf/*.c bpf/*.h bpf/*/*.h bpf/*/*.c)
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

fmt:
	gofmt -w .
	clang-format-19 -i $(wildcard bpf/*.c bpf/*.h bpf/*/*.h bpf/*/*.c)

# Everything that CI checks before the tests.
check: deps check-generated lint

# -race also on what drives the kernel. -p 1: lab tests share two cores and count lost packets.
test: deps-test build
	@set -o pipefail; WEFT_BINARY=$(CURDIR)/build/weft $(GO) test -race -p 1 -timeout 20m -json $(TESTFLAGS) $(or $(PKG),./...) | $(GO) run ./internal/testsum

# With Vault too, which is built from its module once: minutes, and cached.
test-kms: deps-test
	WEFT_TEST_KMS=1 $(GO) test ./test/kms ./internal/keys/kek/...

clean:
	rm -rf build $(OBJ)/*.o $(BENCH_OBJECT)

demo: build
	@build/weft demo --out build/demo

# The tests that need kernels of their own: Debian's 6.12 and 7.3 in VMs, with the kernel module built for each. See docs/kernels.md.
.PHONY: test-kernels
test-kernels: deps bpf
	@set -o pipefail; test/kernels/run $(KERNELS) | $(GO) run ./internal/testsum
