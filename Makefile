# What there is to build, test and install. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# An archive of the source has no history, and may be unpacked in a repository of others.
REVISION ?= $(shell test -e .git && git rev-parse HEAD 2>/dev/null || echo unknown)
PREFIX  ?= /usr/local
DESTDIR ?=
# mount(8) looks for its helpers there only.
SBIN    ?= /sbin
BENCH   ?=
BIN     ?= bin
# The private key of ssh-keygen that signs a release, and more flags of the program that makes it.
KEY     ?=
DIST    ?=

# The modules; each has its own go.mod.
MODULES := . standalone test release
# What `make test` tests. The tests at the top look at the source alone, and belong to `make lint`.
PACKAGES := ./cmd/... ./internal/... ./standalone/... ./test/... ./release/...
GOLANGCI_VERSION := v2.15.0
VULNCHECK_VERSION := v1.9.0
# The database of known vulnerabilities, a module. `make lint VULNDB=latest` asks the newest.
VULNDB := v0.0.0-20261105234957-e22db6528018

# Programs and tests are compiled with the same flags, so that each package is
# compiled once. buildvcs: a checkout of another owner has no version that go
# could ask git for. grpcnotrace: the tracing pages of gRPC pull in html/template,
# which keeps the linker from leaving out what is not used (61 MB instead of 34).
export CGO_ENABLED := 0
# The toolchain of go.mod, also where Go is installed as one that stays what it is.
export GOTOOLCHAIN ?= auto
export GOFLAGS := $(strip -buildvcs=false -trimpath -tags=grpcnotrace $(GOFLAGS))

PROGRAM := go build -ldflags "-s -w -X main.version=$(VERSION) -X volplane.dev/volplane/internal/process/revision.of=$(REVISION) $${more-}"
LINTER  := bin/golangci-lint-$(GOLANGCI_VERSION)
VULNCHECK := bin/govulncheck-$(VULNCHECK_VERSION)

##@ To use it
.PHONY: build
build: ## build bin/volplane, bin/volplane-node-sidecars and bin/volplaned
	$(PROGRAM) -o $(BIN)/volplane ./cmd/volplane
	more=-funcalign=16 && $(PROGRAM) -o $(BIN)/volplane-node-sidecars ./cmd/volplane-node-sidecars
	cd standalone && v=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) && minor=$${v#v1.} && k=k8s.io/component-base/version && \
	more="-X $$k.gitVersion=$$v -X $$k.gitMajor=1 -X $$k.gitMinor=$${minor%%.*}" && $(PROGRAM) -o $(abspath $(BIN))/volplaned ./cmd/volplaned

.PHONY: plugin
plugin: ## build bin/kubectl-why_volume, the plugin of kubectl, for the system in GOOS
	$(PROGRAM) -o $(BIN)/ ./cmd/kubectl-why_volume

.PHONY: manual
manual: build ## write the manual pages of all verbs below bin/man8
	cd release && go run ./manual -out $(abspath $(BIN))/man8 -version "$(VERSION)" $(abspath $(BIN))/volplane $(abspath $(BIN))/volplaned

.PHONY: demo
demo: build ## play a volume's whole life in a temporary directory (needs root)
	@.ci/deps host
	bin/volplane demo

.PHONY: install
install: build manual ## install programs, systemd units, completions and manual pages below PREFIX (/usr/local), and the helpers of mount(8) in SBIN (/sbin)
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin $(BIN)/volplane $(BIN)/volplaned
	for name in mount umount; do install -d $(DESTDIR)$(SBIN) && ln -sf $(PREFIX)/bin/volplane $(DESTDIR)$(SBIN)/$$name.volplane; done
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system deploy/systemd/volplane.service deploy/systemd/volplane-node.service deploy/systemd/volplane-driver@.service \
		deploy/systemd/volplane-docker.socket deploy/systemd/volplane-storage.socket
	sed -i 's|/usr/local/bin/|$(PREFIX)/bin/|' $(DESTDIR)$(PREFIX)/lib/systemd/system/volplane.service $(DESTDIR)$(PREFIX)/lib/systemd/system/volplane-node.service
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/share/man/man8 $(BIN)/man8/*
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	$(BIN)/volplane completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/volplane
	$(BIN)/volplane completion zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_volplane
	$(BIN)/volplane completion fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/volplane.fish

.PHONY: uninstall
uninstall: ## remove what `make install` has installed; volumes and their data stay
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/volplane bin/volplaned share/bash-completion/completions/volplane \
		share/zsh/site-functions/_volplane share/fish/vendor_completions.d/volplane.fish) $(DESTDIR)$(SBIN)/mount.volplane $(DESTDIR)$(SBIN)/umount.volplane \
		$(addprefix $(DESTDIR)$(PREFIX)/share/man/man8/,volplane.8.gz volplane-*.8.gz volplaned.8.gz volplaned-*.8.gz) \
		$(addprefix $(DESTDIR)$(PREFIX)/lib/systemd/system/,$(notdir $(wildcard deploy/systemd/volplane*)))

##@ To change it
.PHONY: test
test: bin/gotestsum bin/go.work ## run every test of all modules (needs root)
	@.ci/needs
	.ci/gotest $(PACKAGES)

.PHONY: t
t: bin/go.work ## run the tests of one package, with what they need: P=internal/node RUN=TestX
	@.ci/needs $(or $(P),$(error name the folder of a package: make t P=internal/node))
	.ci/gotest -p $(P) $(if $(RUN),-v -run '$(RUN)')

# The tests that draw what they do.
DRAWN := Test(.*IsKubernetes|Exchange|EveryStep|FlexMigrateKilled|HostileDrivers|KillAtAnyMoment|Lives|MovesAmongFaults|NoHostGetsWhatIsOfAnother)$$

.PHONY: proof
proof: bin/go.work ## play TIMES=100 times what `make test` draws by lot, from SEED on (a day; needs root): RUN=TestBinderIsKubernetes for a part
	@.ci/needs
	TIMES=$(or $(TIMES),100) .ci/gotest -p '$(or $(P),test/...)' -timeout=96h -v -run '$(or $(RUN),$(DRAWN))' $(if $(P),,./standalone/apiserver) | tee bin/proof.log
	@grep 'played ' bin/proof.log

.PHONY: vendors
vendors: build bin/kubectl bin/kube-controller-manager ## start the sidecars of charts of others, which `helm template` has rendered into the directory MANIFESTS=DIR, one driver a file
	cd test && MANIFESTS="$(abspath $(or $(MANIFESTS),$(error name the directory of the manifests: make vendors MANIFESTS=DIR)))" \
	go test -count=1 -timeout=1h -v -run 'TestVendors$$' ./exchange

.PHONY: examples
examples: build bin/kubectl bin/kube-controller-manager bin/kubelet bin/csi-provisioner bin/csi-attacher bin/csi-resizer bin/csi-snapshotter bin/snapshot-controller ## exchange sidecars around csi-driver-host-path in containers: its program DRIVER, MANIFEST with its rights, its EXAMPLES=DIR (needs root)
	$(foreach v,DRIVER MANIFEST EXAMPLES,$(if $($(v)),,$(error $(v) is missing: make examples DRIVER=FILE MANIFEST=FILE EXAMPLES=DIR)))
	cd test && DRIVER="$(abspath $(DRIVER))" MANIFEST="$(abspath $(MANIFEST))" EXAMPLES="$(abspath $(EXAMPLES))" \
	go test -count=1 -timeout=1h -v -run 'TestOneSedInContainers$$/hostpath' ./exchange

.PHONY: mutants
mutants: ## change PACKAGES in small ways, one by one, and tell which changes their own tests do not notice
	cd test && go build -o ../bin/mutants ./mutants
	bin/mutants $(or $(PACKAGES),./internal/decide/... ./internal/explain/... ./internal/durable ./internal/node/journal ./internal/kube ./internal/controller/...)

.PHONY: foreign
foreign: build bin/kubectl ## play the whole life of drivers of others, whose built programs are below DRIVERS=DIR (needs root)
	cd test && DRIVERS="$(abspath $(or $(DRIVERS),$(error name the directory of the drivers: make foreign DRIVERS=DIR)))" \
	go test -count=1 -timeout=2h -parallel=2 -v -run 'TestForeign$$' ./drivers

.PHONY: cluster
cluster: bin/kubernetes bin/csi-provisioner ## try the storage controllers in a cluster of Kubernetes' own
	cd test && go test -count=1 -v -run InACluster ./kube

.PHONY: unit
unit: ## run the quick tests: no root, no API server
	go test -count=1 . ./cmd/... $$(go list ./internal/... | grep -vE "/($$(awk '/^internal.* root/ { print $$1 }' .ci/needs.txt | paste -sd '|'))$$")

.PHONY: lint
lint: $(LINTER) $(VULNCHECK) bin/go.work ## run the linters over all modules, and look for known vulnerabilities and for files that are stale
	.ci/lint $(LINTER) $(VULNCHECK) $(VULNDB) $(PACKAGES)

.PHONY: dist
dist: ## make below dist/ what is released: archives, packages, images, plugin, sums (KEY=FILE signs them)
	cd release && go build -o ../bin/release .
	bin/release -root . -out dist -version "$(VERSION)" -key "$(KEY)" $(DIST)

.PHONY: bench
bench: deps build ## measure the built programs, print JSON; BENCH="-rounds 5 -storm 200"
	cd test && go build -ldflags "-s -w" -o ../bin/bench-controllers ./bench/controllers && go run ./bench $(BENCH)

.PHONY: screenshots
screenshots: ## take the pictures of docs/page.md with Chromium
	.ci/deps
	cd test && SCREENSHOTS=$(CURDIR)/docs/images go test -count=1 -run TestDarkAndLight ./page

.PHONY: generate
generate: ## write the generated files
	for m in $(MODULES); do (cd $$m && go generate ./...); done

.PHONY: chart
chart: ## write charts/volplane, the Helm chart of what `volplane manifests` prints
	cd test && go run ./chart

.PHONY: deps
deps: ## install the tools that are missing (Debian, Ubuntu)
	@.ci/deps

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^##@/ { print substr($$0, 5) ":" } /^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

# Programs of others, of the module test/, have the version that the API server has.
OTHERS := go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes)"

# Kubernetes' control plane for the tests, in one program that goes by the name that it is run by.
bin/kubernetes: test/go.mod test/kubernetes/main.go
	cd test && $(OTHERS) -o ../$@ ./kubernetes

bin/kubectl-why_volume: plugin

bin/kube-controller-manager bin/kubelet bin/kube-apiserver bin/etcd: bin/kubernetes
	ln -sf kubernetes $@

# kubectl, Kubernetes' own sidecars and its example of a populator are tools of the module test/, so that they are
# compiled with the packages that the tests and bin/kubernetes have.
bin/kubectl bin/csi-provisioner bin/csi-attacher bin/csi-resizer bin/csi-snapshotter bin/snapshot-controller bin/hello-populator &: test/go.mod
	cd test && $(OTHERS) -o ../bin/ $$(go list tool | grep -v gotestsum)

# A driver of others, Helm, and podman's generator of units need other versions, and have modules of their own.
bin/gocsi-mock: test/upstream/gocsi/go.mod
bin/helm: test/upstream/helm/go.mod
bin/quadlet: test/upstream/quadlet/go.mod
bin/gocsi-mock bin/helm bin/quadlet:
	cd $(<D) && go build -ldflags "-s -w" -o $(CURDIR)/$@ $$(go list tool)

# The workspace in which one command tests or lints all modules: it compiles and analyses nothing twice.
bin/go.work: go.mod Makefile
	@mkdir -p bin
	{ grep -E '^(go|toolchain) ' go.mod; printf 'use ../%s\n' $(MODULES) | sed 's|/\.$$||'; } >$@

bin/gotestsum: test/go.mod
	cd test && go build -ldflags "-s -w" -o ../$@ gotest.tools/gotestsum

# Tools that are installed as they were released, not with the versions of a module here.
$(LINTER): from := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
$(VULNCHECK): from := golang.org/x/vuln/cmd/govulncheck@$(VULNCHECK_VERSION)
$(LINTER) $(VULNCHECK):
	GOBIN=$(CURDIR)/$@.new GOFLAGS= GOGC=400 go install $(from)
	mv $@.new/* $@ && rmdir $@.new
