# The two commands are `make up` and `make test`. A Rust toolchain and a C compiler are all they need.

CARGO ?= cargo
RUSTC ?= rustc
TARGET_DIR ?= $(or $(CARGO_TARGET_DIR),target)
# Where `make up` keeps its state; empty means the gateway's own default.
STATE_DIR ?=
# Extra arguments for the test runner, e.g. `make test ARGS=kill`.
ARGS ?=
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)
NEXTEST_PROFILE ?= default
# A static wrapper is the cheapest to start; it is built where its target is installed.
MUSL_TARGET ?= $(shell uname -m)-unknown-linux-musl
MUSL = $(shell test -d "$$($(RUSTC) --print target-libdir --target $(MUSL_TARGET) 2>/dev/null)" && echo yes)

.DEFAULT_GOAL := help
.PHONY: help up build man completions test test-foreign bench fmt lint

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

up: build ## Build everything and run it: supervisor, gateway, demo agent
	exec $(TARGET_DIR)/release/acp-gateway up $(if $(STATE_DIR),--state-dir "$(STATE_DIR)")

build: ## Build the three programs in release mode, their man pages and completions
	$(CARGO) build --release --locked -p acp-gateway -p acp-supervisor -p acp-wrapper
	@$(MAKE) --no-print-directory man completions

# From the same definitions as --help; both need the programs of `make build`.
man: ## Write the man pages into target/man
	$(TARGET_DIR)/release/acp-supervisor generate man $(TARGET_DIR)/man
	$(TARGET_DIR)/release/acp-gateway generate man $(TARGET_DIR)/man
	cp packaging/man/acp-wrapper.1 $(TARGET_DIR)/man/

completions: ## Write completion scripts for bash, zsh, fish, elvish and PowerShell into target/completions
	$(TARGET_DIR)/release/acp-supervisor generate completions $(TARGET_DIR)/completions
	$(TARGET_DIR)/release/acp-gateway generate completions $(TARGET_DIR)/completions

test: ## Run the whole test suite
	$(CARGO) build --locked --workspace --bins
ifeq ($(NEXTEST),yes)
	$(CARGO) test --locked --workspace --doc --quiet
	$(CARGO) nextest run --locked --workspace --profile $(NEXTEST_PROFILE) $(ARGS)
else
	$(CARGO) test --locked --workspace --no-fail-fast $(ARGS)
endif

test-foreign: ## Install real agents into target/foreign and run them through the gateway
	$(CARGO) build --locked --workspace --bins
	tests/foreign/install.sh "$(TARGET_DIR)/foreign"
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test foreign -- --ignored --test-threads=1

bench: ## Measure against the raw pipe of the same agent and other wrappers (ARGS="latency --check")
	$(CARGO) build --release --locked --workspace --bins
	$(CARGO) build --profile dist --locked -p acp-wrapper
ifeq ($(MUSL),yes)
	$(CARGO) build --profile dist --locked -p acp-wrapper --target $(MUSL_TARGET)
endif
	$(CARGO) bench --locked --workspace --bench figures -- $(ARGS)

fmt: ## Format the code
	$(CARGO) fmt --all

lint: ## Check the format, clippy and the documentation, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items
