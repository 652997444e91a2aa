# Weft. `make demo` and `make test` are all a new machine needs; both say first what they will install.
SHELL := /bin/bash
CLANG ?= clang-19
LLVM_STRIP ?= llvm-strip-19
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

OBJ := internal/datapath/bpf/obj
BPF_HEADERS := $(wildcard bpf/lib/*.h)
# Programs that exist for both contexts, for XDP only, and for neither; all others are for TC.
BPF_BOTH := from_pod from_wire sa_test
BPF_XDP := sa flows
BPF_OTHER := vmfork source_filter sealer_gro
BPF_TC := $(filter-out $(BPF_BOTH) $(BPF_XDP) $(BPF_OTHER),$(patsubst bpf/%.bpf.c,%,$(wildcard bpf/*.bpf.c)))
OBJECTS := $(foreach h,$(BPF_BOTH),$(OBJ)/$(h)_xdp.o $(OBJ)/$(h)_tc.o) $(foreach h,$(BPF_TC),$(OBJ)/$(h)_tc.o) \
	$(foreach h,$(BPF_XDP),$(OBJ)/$(h)_xdp.o) $(foreach h,$(BPF_OTHER),$(OBJ)/$(h).o)
BENCH_OBJECT := internal/bench/obj/bench.o
TAP_OBJECT := internal/encryptcheck/obj/tap.o
# As libbpf names it: what bpf/lib/ctx.h needs to know about the order of loads.
BPF_ARCH := $(patsubst aarch64,arm64,$(patsubst x86_64,x86,$(shell uname -m)))
BPF_CFLAGS := -O2 -g -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror -target bpf -mcpu=v3 -D__TARGET_ARCH_$(BPF_ARCH) \
	-fdebug-prefix-map=$(CURDIR)=. -I/usr/include/$(shell uname -m)-linux-gnu

GENERATED := internal/datapath/bpf/types_gen.go internal/datapath/bpf/reasons_gen.go docs/drop-reasons.md packaging/kubernetes/crds.yaml

.DELETE_ON_ERROR:
.PHONY: all build deps deps-test check-deps fetch bpf generate check check-generated demo test test-kms lint fmt clean
all: build

# Installs what is missing, as root. `make demo`, `make test` and `make check` do so first; the others only check and name it.
deps:
	@scripts/deps

check-deps:
	@scripts/deps --check

deps-test:
	@scripts/deps test

# Everything that tests need from the network.
fetch: deps-test
	@scripts/fetch

bpf: $(OBJECTS) $(BENCH_OBJECT) $(TAP_OBJECT)

# What is stripped is DWARF, a third of an object; the loader reads BTF only.
$(OBJ)/%_xdp.o: bpf/%.bpf.c $(BPF_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -DWEFT_XDP -c $< -o $@
	$(LLVM_STRIP) -g $@

$(OBJ)/%_tc.o: bpf/%.bpf.c $(BPF_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -c $< -o $@
	$(LLVM_STRIP) -g $@

$(BPF_OTHER:%=$(OBJ)/%.o): $(OBJ)/%.o: bpf/%.bpf.c $(BPF_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -c $< -o $@
	$(LLVM_STRIP) -g $@

$(BENCH_OBJECT): bpf/bench/bench.bpf.c $(wildcard bpf/bench/*.h)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -c $< -o $@
	$(LLVM_STRIP) -g $@

$(TAP_OBJECT): bpf/encryptcheck/tap.bpf.c
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -c $< -o $@

$(OBJ)/abi.o: bpf/abi.c $(BPF_HEADERS)
	@mkdir -p $(@D)
	$(CLANG) $(BPF_CFLAGS) -c $< -o $@
	$(LLVM_STRIP) -g $@

generate: $(OBJ)/abi.o
	$(GO) run ./internal/gen -object $(OBJ)/abi.o -reasons bpf/lib/reasons.h \
		-types internal/datapath/bpf/types_gen.go -reasons-go internal/datapath/bpf/reasons_gen.go -reasons-doc docs/drop-reasons.md
	$(GO) run ./packaging/crds api/v1alpha1 > packaging/kubernetes/crds.yaml

# What the compiler derives from the C headers. Committed; `make check-generated` proves it current.
check-generated: generate
	@git diff --exit-code -- $(GENERATED) || { echo "generated files are out of date: run make generate and commit"; exit 1; }

# grpcnotrace: grpc's debug pages are HTML templates, which call methods by name, and with one of them
# linked in, the linker keeps every method of every client of every key service. cmd/weft has a test.
build: check-deps bpf
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace \
		-ldflags "-s -w -X weft.dev/weft/internal/version.Version=$(VERSION)" -o build/ ./cmd/...
	@ln -sf weft build/weft-cni

# build/weft_VERSION_ARCH.deb. The same commit gives the same bytes.
.PHONY: deb
deb: build
	@VERSION=$(VERSION) packaging/deb/build

# With the flags of build, so that what it has compiled serves here.
lint: export CGO_ENABLED = 0
lint: export GOFLAGS = -trimpath -tags=grpcnotrace
lint: check-deps bpf
	@unformatted=$$(gofmt -l .) || exit 1; [ -z "$$unformatted" ] || { echo "not gofmt'ed:" $$unformatted; exit 1; }
	clang-format-19 --dry-run --Werror $(wildcard bpf/*.c bpf/*.h bpf/*/*.h bpf/*/*.c)
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

fmt:
	gofmt -w .
	clang-format-19 -i $(wildcard bpf/*.c bpf/*.h bpf/*/*.h bpf/*/*.c)

# Everything that CI checks before the tests.
check: deps
	@$(MAKE) --no-print-directory check-generated lint

# -race also on what drives the kernel. internal/testrun says what runs beside what: labs count lost packets. GOPROXY=off: what
# `fetch` forgot fails here, not only where a cache is cold.
test: fetch
	@$(MAKE) --no-print-directory build
	@set -o pipefail; export GOPROXY=off; WEFT_BINARY=$(CURDIR)/build/weft $(GO) run ./internal/testrun $(PKG) -- $(TESTFLAGS) | $(GO) run ./internal/testsum

# With Vault too, which is built from its module once: minutes, and cached.
test-kms: deps-test bpf
	@scripts/fetch kms
	WEFT_TEST_KMS=1 GOPROXY=off $(GO) test ./test/kms ./internal/keys/kek/...

clean:
	rm -rf build $(OBJ)/*.o $(BENCH_OBJECT) $(TAP_OBJECT)

demo: deps
	@$(MAKE) --no-print-directory build
	@build/weft demo --out build/demo

# What AuthorizationPolicies mean, beside what Istio makes of them: a module of its own.
.PHONY: test-istio
test-istio:
	cd test/istio && $(GO) test -count=1 -v .

# What NetworkPolicies mean, beside another implementation: a module of its own, which takes minutes to compile, once.
.PHONY: test-cyclonus
test-cyclonus: build
	cd test/cyclonus && WEFT_BINARY=$(CURDIR)/build/weft $(GO) test -count=1 -timeout 1h -v .

# What ClusterNetworkPolicies mean: network-policy-api's own conformance tests, in a module of its own.
.PHONY: test-netpolapi
test-netpolapi:
	cd test/netpolapi && $(GO) test -count=1 -v .

# On real Kubernetes, whose programs are built from its module once: that takes 10 minutes and more, and they are cached. Too long for
# .ci/run's hour. test-k8s-store is the store, the manifests and permissions against kube-apiserver alone, test-k8s-cluster pods of real
# kubelets.
.PHONY: test-k8s test-k8s-store test-k8s-cluster
test-k8s: test-k8s-store test-k8s-cluster

test-k8s-store: deps-test bpf
	@scripts/fetch k8s
	WEFT_TEST_K8S=1 GOPROXY=off $(GO) test -count=1 -timeout 1h ./test/k8s ./internal/store/kube

test-k8s-cluster: fetch build
	@scripts/deps k8s
	@scripts/fetch k8s
	WEFT_TEST_K8S=1 WEFT_BINARY=$(CURDIR)/build/weft GOPROXY=off $(GO) test -count=1 -timeout 1h -v ./test/k8s/cluster

# The tests that need kernels of their own: Debian's 6.12 and 7.3 in VMs, with the kernel module built for each. WEFT_SEED says which tests
# run on which, all: every one on both. See docs/kernels.md.
.PHONY: test-kernels fetch-kernels
test-kernels: fetch-kernels bpf
	@set -o pipefail; test/kernels/run $(KERNELS) | $(GO) run ./internal/testsum

# What they need from the network: QEMU, kernels with their headers, a compiler for modules. What is there is not fetched again.
fetch-kernels: deps
	@test/kernels/packages
	@test/kernels/fetch $(KERNELS)

# Would the tests notice? One fault at a time is put into the datapath and the keys, see test/mutate/mutations.yaml. Most of an hour on
# two cores, so it is for a nightly job; mutate-some takes as many as go into two minutes, others each time: for you, before a commit.
.PHONY: mutate mutate-some
mutate: fetch bpf
	@GOPROXY=off $(GO) run ./test/mutate -only '$(MUTATE)'

mutate-some: fetch bpf
	@GOPROXY=off $(GO) run ./test/mutate -for 120s

# Labs walked through random mistakes, crashes and absences, see docs/model-test.md. `make test` walks some hundred steps; this is for
# a nightly job: most of an hour. WEFT_MODEL_SEED has the same walks again.
.PHONY: test-model
test-model: build fetch
	@WEFT_BINARY=$(CURDIR)/build/weft GOPROXY=off test/model/run

# What takes too long for every change, for a nightly job: all tests on all kernels, Vault, long versions, random walks, faults. A part
# that fails does not keep the next from running.
.PHONY: test-nightly test-long
test-nightly:
	@$(MAKE) --no-print-directory -k WEFT_SEED=all test-kernels test-kms test-k8s test-cyclonus test-netpolapi test-istio test-long test-model mutate

test-long: fetch bpf
	WEFT_TEST_LONG=1 GOPROXY=off $(GO) test -race -count=1 -timeout 2h ./test/e2e -run TestRotationOverKMS
	WEFT_FUZZ_TIME=$${WEFT_FUZZ_TIME:-5m} GOPROXY=off $(GO) test -race -count=1 -timeout 2h ./test/wirefuzz
