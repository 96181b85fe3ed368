# headwater: `make demo` shows the whole way, `make test` proves it. Both do their own set-up; a second start takes seconds.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

CORE    := broker_edge/core
VENV    := .venv
PY      := $(VENV)/bin/python
CACHE   := .cache
JARS    := $(CACHE)/jars
# `quick` is optimised without link-time optimisation; `release` is for figures and the wheel.
PROFILE ?= quick
CARGO   := cargo --locked
# Always with the native module's features, which change those of what all share: else everything is built twice.
PYTHON_FEATURES := headwater-python/python
BROKER  := --package headwater-broker --package headwater-python --features $(PYTHON_FEATURES)
BIN     := $(CORE)/target/$(PROFILE)/headwaterd
# Tests and lints take the whole workspace with the features of the build above: another choice of packages or features
# gives the dependencies other features, and builds them again.
RUST    := --manifest-path $(CORE)/Cargo.toml --profile $(PROFILE) --workspace --features $(PYTHON_FEATURES)
ARGS    ?=
# What is packaged: the release, unless another profile or file is asked for.
IS_NAMED = $(filter command% environment%,$(origin PROFILE) $(origin BIN))
PACKAGED = $(if $(IS_NAMED),$(BIN),$(CORE)/target/release/headwaterd)
# Of pytest: most of the time a test waits for a disk, a process or a clock, so that three share two cores well.
WORKERS ?= 3

PYTHON  ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,$(if $(shell $(p) -c 'import sys, venv; print(sys.version_info >= (3, 11))' 2>/dev/null | grep True),$(p))))
RUST_SOURCES := $(shell find $(CORE) -path $(CORE)/target -prune -o \( -name '*.rs' -o -name 'Cargo.*' \) -print 2>/dev/null)
# The console is in the binary.
RUST_SOURCES += $(wildcard broker_edge/ui/* broker_edge/ui/*/*)

# What a machine lacks is put into these folders by `prerequisites` and `java`. To use your own again, remove them.
export PATH := $(CURDIR)/$(CACHE)/rust/bin:$(CURDIR)/$(CACHE)/jdk/bin:$(PATH)
export HEADWATERD := $(CURDIR)/$(BIN)
export HEADWATER_JARS := $(CURDIR)/$(JARS)

.PHONY: help
help: ## this help
	@echo "headwater: from device to Delta table and back"; echo
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST)); echo
	@echo "  make demo ARGS='--for 60 --headless --json'   one minute, one JSON object"

.PHONY: prerequisites
prerequisites:
	@fail() { echo "make: $$1" >&2; exit 1; }; \
	command -v git >/dev/null || fail "git is missing: install it (Debian: apt-get install git)"; \
	command -v cc >/dev/null || fail "a C compiler is missing: install one (Debian: apt-get install build-essential)"; \
	[ -n "$(PYTHON)" ] || fail "Python 3.11 or newer with venv is missing: install it (Debian: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3"
	@$(PYTHON) supply/rust.py --to $(CACHE)/rust

.PHONY: java
java: $(VENV)/.stamp
	@$(PY) -m supply.jdk --to $(CACHE)/jdk

$(VENV)/.stamp: requirements.lock | prerequisites
	@echo "== virtual environment ($(PYTHON))" >&2
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@touch $@

$(CACHE)/broker.stamp: $(RUST_SOURCES) | prerequisites
	@echo "== broker (profile $(PROFILE); the first build takes some minutes)" >&2
	@mkdir -p $(CACHE)
	@$(CARGO) build --quiet --manifest-path $(CORE)/Cargo.toml --profile $(PROFILE) $(BROKER) --bin headwaterd
	@touch $@

$(CACHE)/native.stamp: $(VENV)/.stamp $(CACHE)/broker.stamp pyproject.toml
	@echo "== native module" >&2
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop --quiet --locked --profile $(PROFILE) > $(CACHE)/maturin.log 2>&1 || { cat $(CACHE)/maturin.log >&2; exit 1; }
	@touch $@

# Beside headwaterd, under another name: the broker that can be told to harm itself (docs/torture.md).
$(CACHE)/faults.stamp: $(CACHE)/native.stamp
	@echo "== fault build of the broker (profile $(PROFILE))" >&2
	@$(CARGO) build --quiet --manifest-path $(CORE)/Cargo.toml --profile $(PROFILE) $(BROKER),headwater-broker/faults --bin headwaterd-faults
	@touch $@

$(JARS)/.stamp: $(VENV)/.stamp | java
	@echo "== Delta jars into $(JARS)" >&2
	@$(PY) -m pipelines.spark.jars --to $(JARS)
	@$(PY) -m pipelines.spark.class_archive --to $(JARS)
	@touch $@

# The S3 server of the tests; a demo needs no Go. What Go keeps for a next build stays in the project, and goes.
$(CACHE)/versitygw: tests/support/s3_server/go.mod tests/support/s3_server/go.sum
	@echo "== S3 server of the tests" >&2
	@command -v go >/dev/null || { echo "make: Go 1.25 or newer is missing: install it (https://go.dev/dl)" >&2; exit 1; }
	@mkdir -p $(CACHE)
	@cd tests/support/s3_server && GOCACHE=$(CURDIR)/$(CACHE)/go/build GOMODCACHE=$(CURDIR)/$(CACHE)/go/modules \
	  GOTOOLCHAIN=local GOFLAGS='-modcacherw -trimpath -buildvcs=false' \
	  go build -ldflags='-s -w' -o $(CURDIR)/$@ github.com/versity/versitygw/cmd/versitygw
	@rm -rf $(CACHE)/go

# Beside the virtual environment: what these need is in no lock of the product.
$(CACHE)/tools/.stamp: supply/tools.lock $(VENV)/.stamp
	@echo "== tools for licences and bills of materials" >&2
	@rm -rf $(CACHE)/tools
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(CACHE)/tools --requirement supply/tools.lock
	@touch $@

# Beside the virtual environment too: nothing of the product needs what makes the site.
$(CACHE)/docs/.stamp: supply/docs.lock $(VENV)/.stamp
	@echo "== tools for the documentation" >&2
	@rm -rf $(CACHE)/docs
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(CACHE)/docs --requirement supply/docs.lock
	@touch $@

# Beside the virtual environment too: Playwright brings a Node of 120 MB that nothing else needs.
$(CACHE)/browser/.stamp: supply/browser.lock $(VENV)/.stamp
	@echo "== Playwright for the tests of the console" >&2
	@rm -rf $(CACHE)/browser
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(CACHE)/browser --requirement supply/browser.lock
	@touch $@

$(CACHE)/jars-s3a: $(JARS)/.stamp
	@$(PY) -m pipelines.spark.jars --to $(JARS) --s3a

# Helm of the tests, as its project builds it. A machine that is not x86_64 uses the one on its path.
$(CACHE)/helm: supply/helm.lock | $(VENV)/.stamp
	@echo "== Helm for the tests of the chart" >&2
	@$(PY) tests/support/helm.py fetch

.PHONY: helm
helm: $(CACHE)/helm ## Helm, for the tests of the chart

.PHONY: chart
chart: helm ## the Helm chart, in dist/
	@$(PY) tests/support/helm.py package --to dist

.PHONY: store-server
store-server: $(CACHE)/versitygw ## the S3 server of the tests, and the jars with which Spark reaches it
	@$(MAKE) --no-print-directory $(JARS)/.stamp $(CACHE)/jars-s3a

.PHONY: build
build: prerequisites $(VENV)/.stamp $(CACHE)/native.stamp ## broker, native module and virtual environment

.PHONY: setup
setup: prerequisites ## everything the demo and the tests need
	@# Side by side: one waits for the network, the other for the compiler.
	@$(MAKE) --no-print-directory --jobs=3 parts

.PHONY: parts
parts: $(VENV)/.stamp $(CACHE)/native.stamp $(JARS)/.stamp
	@:

.PHONY: demo
demo: setup ## the whole way: devices, broker, Spark, Delta, an action (ARGS='--for 60 --headless --json')
	@$(VENV)/bin/headwater demo $(ARGS)

.PHONY: faults-build
faults-build: prerequisites $(CACHE)/faults.stamp ## the broker that can be told to harm itself

.PHONY: torture
torture: build faults-build ## inject faults into a broker and check what was acknowledged (ARGS='--cycles 1000 --faults kill,power')
	@$(VENV)/bin/headwater torture $(ARGS)

# Side by side, as in `setup`.
.PHONY: test-setup
test-setup: prerequisites
	@$(MAKE) --no-print-directory --jobs=3 parts test-parts

.PHONY: test-parts
test-parts: $(CACHE)/faults.stamp $(addprefix $(CACHE)/,$(addsuffix /.stamp,tools docs browser)) $(CACHE)/versitygw $(CACHE)/jars-s3a $(CACHE)/helm
	@:

.PHONY: test
test: test-setup ## format, lints, types and every test
	@# The tests in Python wait for most of their time: the tests of the crates are compiled and run beside them.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line lint-and-test-rust pytest

.PHONY: lint-and-test-rust
lint-and-test-rust:
	@$(CARGO) test --quiet $(RUST) --no-run
	@$(MAKE) --no-print-directory lint-rust
	@$(MAKE) --no-print-directory lint-python
	@$(MAKE) --no-print-directory test-rust

.PHONY: test-long
test-long: test-setup ## long kill loops, models and fuzzing; then every target here on a fresh clone
	HEADWATER_MODEL_CASES=5000 HEADWATER_CRASH_STRIDE=1 $(CARGO) test --quiet $(RUST) --test it -- model:: crash_points::
	HEADWATER_FUZZ_SECONDS=300 $(CARGO) test --quiet $(RUST) --test fuzz
	@$(MAKE) --no-print-directory fuzz-machine ARGS='--executions 10000000'
	@$(MAKE) --no-print-directory fuzz ARGS='--goal'
	HEADWATER_FAULT_CYCLES=200 $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile tests/faults
	HEADWATER_HISTORIES=6000 $(PY) -m pytest tests/unit/test_engine_fleet.py
	HEADWATER_STEPS=1000000 $(PY) -m pytest -s tests/unit/test_engine_machine.py -k promises
	HEADWATER_STEPS=20000 $(PY) -m pytest --numprocesses $(WORKERS) tests/unit/test_fuzz_readers.py
	HEADWATER_KILLS=all $(PY) -m pytest tests/spark/test_telemetry_kill.py
	HEADWATER_RECORD_BYTES=100000000 $(PY) -m pytest tests/spark/test_largest_records.py
	HEADWATER_POWER_CUTS=20 $(PY) -m pytest tests/faults/test_power_cut_*.py
	HEADWATER_RACES=1000 $(PY) -m pytest tests/integration/test_store.py
	HEADWATER_ENDINGS=5000 $(PY) -m pytest -s tests/integration/test_fleet_endings.py
	HEADWATER_LONG_DOCS=1 $(PY) -m pytest tests/integration/test_docs_pages.py -k tutorial
	HEADWATER_LONG_NOTEBOOKS=1 $(PY) -m pytest tests/integration/test_notebooks.py -k runs_as_it_is
	tests/packaging/fresh_machine
	.ci/targets

.PHONY: test-fleet
test-fleet: setup store-server ## a cluster of machines in network namespaces: kills, Spark Connect (root; ARGS='-k connect')
	HEADWATER_FLEET=1 $(PY) -m pytest tests/fleet $(ARGS)

.PHONY: lint
lint: $(VENV)/.stamp ## rustfmt, clippy, ruff, mypy
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint-rust lint-python

.PHONY: lint-rust
lint-rust:
	cargo fmt --manifest-path $(CORE)/Cargo.toml --all --check
	$(CARGO) clippy --quiet $(RUST) --all-targets -- -D warnings
	$(CARGO) clippy --quiet $(RUST),headwater-broker/faults --lib --bins -- -D warnings

.PHONY: lint-python
lint-python: $(VENV)/.stamp
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

.PHONY: test-rust
test-rust: ## the tests of the crates
	$(CARGO) test --quiet $(RUST)

.PHONY: test-python
test-python: test-setup ## pytest (ARGS='-k name')
	@$(MAKE) --no-print-directory pytest

.PHONY: pytest
pytest:
	$(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Beside the virtual environment, because it has wheels for some versions of Python only.
$(CACHE)/fuzz/python/.stamp: supply/fuzz.lock | $(VENV)/.stamp
	@mkdir -p $(@D)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --only-binary :all: --upgrade \
	  --target $(@D) --requirement supply/fuzz.lock || echo "make: atheris cannot be installed" >&2
	@touch $@

.PHONY: fuzz
fuzz: $(CACHE)/native.stamp $(CACHE)/fuzz/python/.stamp ## every reader of bytes from outside, guided by coverage (ARGS='--seconds 600 --target mqtt')
	@# Beside the other builds: with the code of the coverage in it, nothing can be shared with them.
	@RUSTC_WRAPPER=$(CURDIR)/$(CORE)/fuzz/rustc $(CARGO) build --quiet --manifest-path $(CORE)/Cargo.toml --profile fuzz \
	  --package headwater-fuzz --features libfuzzer --target-dir $(CACHE)/fuzz/build
	@$(PY) tests/support/fuzz.py $(ARGS)

.PHONY: fuzz-machine
fuzz-machine: ## packets that follow the format against the codec and the session machine (ARGS='--executions 10000000')
	HEADWATER_FUZZ_EXECUTIONS=$(or $(lastword $(ARGS)),1000000) $(CARGO) test $(RUST) --test it fuzz:: -- --nocapture
	@# One arena: what the system's allocator keeps for threads that come and go would pass for growth.
	MALLOC_ARENA_MAX=1 HEADWATER_FUZZ_EXECUTIONS=$(or $(lastword $(ARGS)),1000000) $(CARGO) test $(RUST) --lib tests::fuzz -- --nocapture

.PHONY: conformance-table
conformance-table: ## docs/conformance.md from the clauses and their tests
	HEADWATER_WRITE_CONFORMANCE=1 $(CARGO) test --quiet $(RUST) --test it conformance::table::

.PHONY: docs
docs: $(CACHE)/docs/.stamp ## the documentation as a site, in dist/docs; a broken link or a page in no list is an error
	@rm -rf dist/docs
	@# All pages are read each time: a warning about one that has not changed would not be repeated.
	@PYTHONPATH=$(CACHE)/docs $(PY) -m sphinx -E --quiet --fail-on-warning --jobs 2 \
	  --conf-dir docs/site --doctree-dir $(CACHE)/docs-pages --builder html . dist/docs
	@echo "dist/docs/index.html"

.PHONY: screenshots
screenshots: build $(CACHE)/browser/.stamp ## each page of the console, wide and narrow, light and dark, in dist/screenshots
	@rm -rf dist/screenshots
	@HEADWATER_SCREENSHOTS=dist/screenshots $(PY) -m pytest -q tests/browser/test_pages.py tests/browser/test_fleet_pages.py
	@echo "dist/screenshots"

.PHONY: reference
reference: setup ## conf/broker.yaml, its schema and docs/reference from the declarations in the code
	HEADWATER_WRITE_DOCS=1 $(CARGO) test --quiet --manifest-path $(CORE)/Cargo.toml --package headwater-broker --profile $(PROFILE) --lib config::
	HEADWATER_WRITE_DOCS=1 $(PY) -m pytest -q tests/unit/test_docs_reference.py tests/integration/test_docs_metrics.py

.PHONY: deny
deny: $(CACHE)/tools/.stamp ## licences, sources and duplicates of the crates (broker_edge/core/deny.toml)
	$(CACHE)/tools/bin/cargo-deny --locked --manifest-path $(CORE)/Cargo.toml check -D warnings -D unmatched-skip licenses bans sources

.PHONY: sbom
sbom: $(CACHE)/tools/.stamp ## the bill of materials (CycloneDX) of crates, Python packages and jars, in dist/
	@PYTHONPATH=$(CACHE)/tools $(PY) -m supply.sbom $(ARGS)

.PHONY: audit
audit: $(VENV)/.stamp ## known advisories against what is shipped, from OSV or a folder (AUDIT_DB=FOLDER)
	@$(PY) -m supply.audit $(ARGS)

.PHONY: lock
lock: $(VENV)/.stamp ## requirements.lock and the locks of supply with the digests of the package index (ARGS=--check)
	$(PY) tests/support/lock.py $(ARGS)

.PHONY: fmt
fmt: $(VENV)/.stamp ## write the formats
	cargo fmt --manifest-path $(CORE)/Cargo.toml --all
	$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

.PHONY: release
release: prerequisites ## headwaterd for figures and production: broker_edge/core/target/release
	$(CARGO) build --manifest-path $(CORE)/Cargo.toml --release --bin headwaterd

.PHONY: bench-log
bench-log: ## the commit log beside other libraries and a plain program (ARGS=--short)
	cargo run --locked --quiet --release --manifest-path tests/bench/log/Cargo.toml --bin log-bench -- $(ARGS)

.PHONY: bench-spark
bench-spark: setup release store-server ## Spark and Delta beside Kafka's source, on two cores (ARGS='--records 1000000', ARGS=--latency)
	HEADWATERD=$(CURDIR)/$(CORE)/target/release/headwaterd $(PY) tests/bench/spark_kafka.py $(ARGS)

.PHONY: bench-cluster
bench-cluster: setup release ## three nodes beside one broker, NATS and Kafka (ARGS='--rounds 1 --only broker,cluster')
	HEADWATERD=$(CURDIR)/$(CORE)/target/release/headwaterd $(PY) tests/bench/cluster.py $(ARGS)

.PHONY: bench-tenants
bench-tenants: build release ## two tenants, one of them hostile in every way (ARGS='--seconds 60 --rounds 1')
	HEADWATERD=$(CURDIR)/$(CORE)/target/release/headwaterd $(PY) tests/bench/tenants.py $(ARGS)

.PHONY: wheel
wheel: prerequisites $(VENV)/.stamp ## the wheel, in dist/
	$(VENV)/bin/maturin build --locked --release --out dist

# Beside the virtual environment, and only here: it is large.
$(CACHE)/zig/.stamp: supply/zig.lock | $(VENV)/.stamp
	@rm -rf $(@D)
	@$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target $(@D) --requirement supply/zig.lock
	@touch $@

.PHONY: wheels
wheels: prerequisites $(CACHE)/zig/.stamp ## wheels for x86-64 and ARM, glibc and musl, in dist/; a target that Rust lacks here is skipped by name
	@$(PY) -m supply.wheels --zig $(CACHE)/zig/ziglang/zig $(ARGS)

.PHONY: packages
packages: $(VENV)/.stamp $(if $(IS_NAMED),,release) ## headwaterd as .deb and .rpm, in dist/ (PROFILE=quick, or BIN=FILE: another binary than that of make release)
	@$(PY) -m supply.packages --binary $(PACKAGED) $(ARGS)

# Static, because nothing else is in the image; beside the other builds, with which it shares no crate.
STATIC := $(shell uname -m)-unknown-linux-gnu
.PHONY: image
image: prerequisites $(VENV)/.stamp ## headwaterd as an OCI image from scratch, in dist/ (BIN=FILE: a binary that is there, with its libraries)
ifeq ($(origin BIN),command line)
	@$(PY) -m supply.image --binary $(BIN) $(ARGS)
else
	RUSTFLAGS='-C target-feature=+crt-static' $(CARGO) build --manifest-path $(CORE)/Cargo.toml --release --bin headwaterd \
	  --target $(STATIC) --target-dir $(CACHE)/image
	@$(PY) -m supply.image --binary $(CACHE)/image/$(STATIC)/release/headwaterd $(ARGS)
endif

.PHONY: clean
clean: ## remove what the build made (keeps the jars)
	rm -rf $(VENV) $(CACHE)/*.stamp $(CORE)/target dist broker_edge/*.so
