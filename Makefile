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
# The wrapper is in memory once per agent, so it is linked statically and for size: against musl where that target is
# installed (`rustup target add x86_64-unknown-linux-musl`), else against the C library of the machine.
MUSL_TARGET ?= $(shell uname -m)-unknown-linux-musl
MUSL = $(shell test -d "$$($(RUSTC) --print target-libdir --target $(MUSL_TARGET) 2>/dev/null)" && echo yes)
HOST_TARGET = $(shell $(RUSTC) -vV | sed -n 's/^host: //p')
WRAPPER_TARGET = $(if $(MUSL),$(MUSL_TARGET),$(HOST_TARGET))
WRAPPER_FLAGS = RUSTFLAGS="$(strip $(RUSTFLAGS) $(REMAP) -C target-feature=+crt-static)"
WRAPPER = $(TARGET_DIR)/$(WRAPPER_TARGET)/dist/acp-wrapper

# Release builds hold no path of the machine that made them, so that the same sources give the same programs.
CARGO_HOME_DIR = $(or $(CARGO_HOME),$(HOME)/.cargo)
PREFIXES = $(CURDIR)=/usr/src/acp-host $(abspath $(TARGET_DIR))=/usr/src/acp-host/target $(CARGO_HOME_DIR)=/usr/src/cargo
REMAP = $(addprefix --remap-path-prefix=,$(PREFIXES))
RELEASE = RUSTFLAGS="$(strip $(RUSTFLAGS) $(REMAP))" CFLAGS="$(strip $(CFLAGS) $(addprefix -ffile-prefix-map=,$(PREFIXES)))"

# Seeds of the simulation that are the same each time: `make nightly` plays 10,000, which must reach everything together.
SIM_SEEDS ?= 1000
# The build in which a seed of the simulation is always the same run: see tests/sim/mod.rs.
EXACT = RUSTFLAGS="$(RUSTFLAGS) --cfg tokio_unstable" $(CARGO) test --locked --target-dir "$(TARGET_DIR)/exact" -p acp-gateway --lib

VERSION ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Programs to install and to pack: those of `make build`, or for quick trials PROGRAMS=target/debug, which are stripped.
PROGRAMS ?= $(TARGET_DIR)/release
PACKAGES ?= $(TARGET_DIR)/packages
BUILT = $(if $(filter $(TARGET_DIR)/release,$(PROGRAMS)),build)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
PARTS = "$(PROGRAMS)" "$(TARGET_DIR)/man" "$(TARGET_DIR)/completions"
PACK = STRIPPED=$(if $(BUILT),,1) VERSION=$(VERSION) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH)

.DEFAULT_GOAL := help
.PHONY: help up build install sbom tarball deb image test-install test-vm-services wrapper man completions check test test-foreign test-browser test-postgres test-foreign-nightly test-vm picture nightly replay mutants bench bench-wrapper fmt lint fuzz fuzz-planted deny strip reproducible

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# The programs of `make test`, which are ready in half the time of `make build`.
up: ## Build everything without optimisation and run it: supervisor, gateway, demo agent
	$(CARGO) build --locked --workspace --bins
	exec $(TARGET_DIR)/debug/acp-gateway up $(if $(STATE_DIR),--state-dir "$(STATE_DIR)")

build: ## Build the programs in release mode, their man pages and completions
	$(RELEASE) $(CARGO) build --release --locked -p acp-gateway -p acp-supervisor -p acp-acpx-bridge
	@$(MAKE) --no-print-directory wrapper strip
	install -m 755 "$(WRAPPER)" $(TARGET_DIR)/release/acp-wrapper
	install -m 644 "$(WRAPPER).debug" $(TARGET_DIR)/release/acp-wrapper.debug
	@$(MAKE) --no-print-directory man completions

# Moves what debuggers need of program $(2) in directory $(1) into a file beside it, which it names. The linker's id of the
# file depends on the directory of the build. The program becomes a new file: cargo's own, which has a hard link in deps/, is
# used again by the next build.
STRIP = cd "$(1)" && \
	objcopy --remove-section=.note.gnu.build-id $(2) $(2).stripped && \
	objcopy --only-keep-debug $(2).stripped $(2).debug && \
	objcopy --strip-all --add-gnu-debuglink=$(2).debug $(2).stripped && \
	mv $(2).stripped $(2)

# Not among the goals that `help` shows: parts of `build`.
wrapper:
	$(WRAPPER_FLAGS) $(CARGO) build --profile dist --locked -p acp-wrapper --target $(WRAPPER_TARGET)
	$(call STRIP,$(dir $(WRAPPER)),acp-wrapper)

strip:
	$(call STRIP,$(TARGET_DIR)/release,acp-gateway)
	$(call STRIP,$(TARGET_DIR)/release,acp-supervisor)
	$(call STRIP,$(TARGET_DIR)/release,acp-acpx-bridge)

# Not after `build`, so that root compiles nothing. The wrapper is found in ../lib/acp-host.
install: ## Install the programs of `make build` with units, man pages, completions and manual (PREFIX=/usr/local, DESTDIR=)
	DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" packaging/install.sh $(PARTS)

deb: $(BUILT) man completions sbom ## Make the Debian package in target/packages
	$(PACK) packaging/deb.sh $(PARTS) "$(TARGET_DIR)/acp-host.cdx.json" "$(PACKAGES)"

tarball: $(BUILT) man completions sbom ## Make the tarball in target/packages, with checksums and a list of components
	$(PACK) packaging/tarball.sh $(PARTS) "$(TARGET_DIR)/acp-host.cdx.json" "$(PACKAGES)"

image: deb ## Make a root file system and an OCI archive in target/packages, without a container daemon (needs mmdebstrap)
	$(PACK) packaging/image.sh "$(PACKAGES)"/acp-host_$(VERSION)_*.deb "$(PACKAGES)"

sbom:
	$(CARGO) metadata --locked --format-version 1 --filter-platform $(HOST_TARGET) | packaging/sbom.py > "$(TARGET_DIR)/acp-host.cdx.json"

# From the same definitions as --help; both need the programs of `make build`.
man: ## Write the man pages into target/man
	"$(PROGRAMS)/acp-supervisor" generate man $(TARGET_DIR)/man
	"$(PROGRAMS)/acp-gateway" generate man $(TARGET_DIR)/man
	cp packaging/man/acp-wrapper.1 $(TARGET_DIR)/man/

completions: ## Write completion scripts for bash, zsh, fish, elvish and PowerShell into target/completions
	"$(PROGRAMS)/acp-supervisor" generate completions $(TARGET_DIR)/completions
	"$(PROGRAMS)/acp-gateway" generate completions $(TARGET_DIR)/completions

check: ## Run the library tests and 200 seeds of the simulation: what to run after each edit
ifeq ($(NEXTEST),yes)
	SIM_SEEDS=200 $(CARGO) nextest run --locked --workspace --lib --profile $(NEXTEST_PROFILE) $(ARGS)
else
	SIM_SEEDS=200 $(CARGO) test --locked --workspace --lib --no-fail-fast $(ARGS)
endif

test: ## Run the whole test suite
	$(CARGO) build --locked --workspace --bins
ifeq ($(NEXTEST),yes)
	$(CARGO) test --locked --workspace --doc --quiet
	SIM_SEEDS=$(SIM_SEEDS) $(CARGO) nextest run --locked --workspace --profile $(NEXTEST_PROFILE) $(ARGS)
else
	SIM_SEEDS=$(SIM_SEEDS) $(CARGO) test --locked --workspace --no-fail-fast $(ARGS)
endif

test-foreign: ## Install real agents and ACP clients into target/foreign and run them through the gateway, one downloaded by npx, and in threads of a fake Discord; walk through a foreign fake Discord; run the alerts and the board in Debian's Prometheus, and completion in Debian's zsh and fish
	$(CARGO) build --locked --workspace --bins
	tests/foreign/install.sh "$(TARGET_DIR)/foreign"
	tests/clients/install.sh "$(TARGET_DIR)/foreign"
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test foreign -- --ignored --test-threads=1 --skip nightly_
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test agent_trials -- --ignored --test-threads=1 foreign:: --skip nightly_
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test discord -- --ignored --test-threads=1 foreign::
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test northbound -- --ignored --test-threads=1 foreign::
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test acpx_backend -- --ignored --test-threads=1 foreign::
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test acpx -- --ignored --test-threads=1 foreign::
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test session_tools -- --ignored --test-threads=1 foreign::
	tests/foreign/install-prometheus.sh "$(TARGET_DIR)/foreign"
	PATH="$(abspath $(TARGET_DIR)/foreign)/prometheus/usr/bin:$$PATH" $(CARGO) test --locked -p acp-tests --test metrics -- --ignored --test-threads=1 foreign::
	tests/foreign/install-shells.sh "$(TARGET_DIR)/foreign"
	PATH="$(abspath $(TARGET_DIR)/foreign)/shells/bin:$$PATH" $(CARGO) test --locked -p acp-tests --test shell -- --ignored --test-threads=1 foreign::
	tests/foreign/discord-twin/run.sh "$(TARGET_DIR)"

test-browser: ## Run the modules of the web console in Node, and the console in Chromium (Debian's, unpacked into target/foreign, where none is installed): pages, every action by mouse and by keyboard, kills, troubles of the network, hostile text, axe, pictures
	if command -v node >/dev/null; then node --test tests/console/*.test.mjs; else echo "SKIPPED: tests/console: there is no node"; fi
	$(CARGO) build --locked --workspace --bins
	tests/browser/install.sh "$(TARGET_DIR)/foreign"
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test console -- --ignored --test-threads=1 --nocapture quality_foreign::
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test console -- --ignored --test-threads=1 foreign:: --skip quality_foreign::

# Tests of the store that are about SQLite's files.
OF_SQLITE = opening:: safety:: failed_group_commit_ full_disk_is_ idle_store_makes_ repeated_queries_read_ age_without_rows_ compact

test-postgres: ## Run the tests that need a PostgreSQL server (Debian's, unpacked into target/foreign, where none is installed): kills and promotion of servers, the schema and its functions against SQLite's, the tests of the store on both, cells that are taken and servers that are lost, gateways on a server
	$(CARGO) build --locked --workspace --bins
	tests/postgres/install.sh "$(TARGET_DIR)/foreign"
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test postgres -- --ignored --test-threads=1 foreign::
ifeq ($(NEXTEST),yes)
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" "$(TARGET_DIR)/debug/with-postgres" $(CARGO) nextest run --locked --workspace --lib --profile $(NEXTEST_PROFILE) -E 'package(acp-store) and not ($(foreach name,$(OF_SQLITE),test($(name)) or) none())'
else
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" "$(TARGET_DIR)/debug/with-postgres" $(CARGO) test --locked -p acp-store --lib -- $(OF_SQLITE:%=--skip %)
endif

test-foreign-nightly: ## Install Gemini CLI and Mistral Vibe into target/foreign/nightly and run them through the gateway, and a session whose agent npx downloads
	$(CARGO) build --locked --workspace --bins
	tests/foreign/install-nightly.sh "$(TARGET_DIR)/foreign"
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test foreign -- --ignored --test-threads=1 --nocapture nightly_
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" $(CARGO) test --locked -p acp-tests --test agent_trials -- --ignored --test-threads=1 foreign::nightly_

test-vm: ## Run the tests of limits under Debian's own kernel with control groups of version 2 (needs qemu; ACP_VM_FILTER=. runs all)
	$(CARGO) build --locked --workspace --bins
	tests/vm/run.sh "$(TARGET_DIR)"
	@$(MAKE) --no-print-directory test-vm-services

test-vm-services: ## Boot a Debian with systemd and follow the install page: tenant, restarts and an upgrade in mid-turn, one user's services (needs qemu, root and mmdebstrap)
	$(CARGO) build --locked --workspace --bins
	@$(MAKE) --no-print-directory deb tarball PROGRAMS="$(TARGET_DIR)/debug" PACKAGES="$(TARGET_DIR)/install/packages"
	@$(MAKE) --no-print-directory deb PROGRAMS="$(TARGET_DIR)/debug" PACKAGES="$(TARGET_DIR)/install/upgrade" VERSION=$(VERSION)+1
	tests/vm/services.sh "$(TARGET_DIR)"

# Before make deb, which packs them: the programs of `make test`, stripped, so that nothing is built twice.
test-install: ## Follow the install page in a fresh Debian root: package, turn, file written, purge; and start the image (needs root and mmdebstrap)
	$(CARGO) build --locked --workspace --bins
	@$(MAKE) --no-print-directory tarball $(if $(shell command -v mmdebstrap),image,deb) PROGRAMS="$(TARGET_DIR)/debug" PACKAGES="$(TARGET_DIR)/install/packages"
	tests/install/run.sh "$(TARGET_DIR)/install"
	tests/install/image.sh "$(TARGET_DIR)/install"

picture: ## Run the demo agent in a thread of the fake Discord, and draw that thread for the README
	$(CARGO) build --locked --workspace --bins
	ACP_PICTURE="$(CURDIR)/tests/pictures/thread.json" $(CARGO) test --locked -p acp-tests --test discord -- --exact demo::demo_agent_works_in_a_thread
	tests/pictures/draw.py tests/pictures/thread.json > docs/manual/discord-thread.svg

nightly: fuzz fuzz-planted reproducible test-install test-vm test-foreign-nightly ## Fuzz, build twice and compare, follow the install page in a fresh root and on a booted machine, run Gemini CLI and Mistral Vibe, and run much longer what `make test` runs: soak (ACP_SOAK_SEED=N), 1,000 kills, 50 kills below 20 ACP clients and 500 turns on Discord (ACP_TEST_SEED=N), 10 losses of a PostgreSQL primary, 80 killed moves to it and back, 10 take-overs with Discord, 10,000 seeds of the simulation and 10,000 fresh ones (SIM_FRESH=N)
	$(CARGO) build --locked --workspace --bins
	ACP_CHAOS_KILLS=1000 $(CARGO) test --locked -p acp-tests --test chaos -- --nocapture
	ACP_NORTHBOUND_KILLS=50 $(CARGO) test --locked -p acp-tests --test northbound -- --exact --nocapture chaos::heavy_resumed_clients_hold_exactly_the_journal
	ACP_DISCORD_TURNS=500 $(CARGO) test --locked -p acp-tests --test discord -- --nocapture chaos::heavy_every
	ACP_OPENAPI_SECONDS=600 $(CARGO) test --locked -p acp-tests --test rest -- --exact --nocapture fuzz::every_answer_to_a_generated_request_is_documented
	ACP_OPENAPI_SECONDS=600 $(CARGO) test --locked -p acp-tests --test rest -- --ignored --nocapture foreign::nightly_
	ACP_MEMORY_UPDATES=1000000 $(CARGO) test --locked -p acp-tests --test floods -- --exact --nocapture memory::heavy_many_updates_are_bounded
	tests/postgres/install.sh "$(TARGET_DIR)/foreign"
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" ACP_POSTGRES_LOSSES=10 $(CARGO) test --locked -p acp-tests --test postgres -- --ignored --exact --nocapture engine::foreign::loss_of_the_primary_loses_no_acknowledged_row
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" ACP_MOVE_KILLS=40 $(CARGO) test --locked -p acp-tests --test postgres -- --ignored --exact --nocapture gateway::moves::foreign::killed_move_leaves_one_side_and_is_completed_by_a_repetition
	ACP_FOREIGN_DIR="$(abspath $(TARGET_DIR)/foreign)" ACP_TAKE_OVERS=10 $(CARGO) test --locked -p acp-tests --test postgres -- --ignored --exact --nocapture gateway::discord::foreign::messages_are_answered_once_across_take_overs
	SIM_FRESH_SEEDS=10000 $(EXACT) sim::tests::seeds_fresh -- --nocapture
	SIM_SEEDS=10000 $(CARGO) test --locked --workspace --lib -- --exact sim::tests::seeds_fixed sim::tests::seeds_of_a_cell_fixed --nocapture
	ACP_SOAK_SECONDS=600 $(CARGO) test --locked --workspace --test real heavy_soak -- --nocapture

fuzz: ## Fuzz each target in tests/fuzz for FUZZ_SECONDS (60) from its corpus (needs a C++ compiler)
	tests/fuzz/run.sh "$(TARGET_DIR)/fuzz"

fuzz-planted: ## Show that each fuzz target finds a panic that was planted in it within FUZZ_SECONDS (60)
	tests/fuzz/run.sh "$(TARGET_DIR)/fuzz" planted

replay: ## Play a seed of the simulation and print all of it (SIM_SEED=N)
	SIM_SEED="$(SIM_SEED)" $(EXACT) sim::tests::replay -- --exact --nocapture

mutants: ## Break what decides about processes, one place at a time: a test must notice (needs cargo-mutants)
	$(CARGO) mutants -p acp-supervisor $(addprefix -f supervisor/src/core/,verify.rs reap_plan.rs tree.rs) \
		--test-tool nextest --output "$(TARGET_DIR)" $(ARGS) -- --lib --test sim --profile mutants

reproducible: ## Build the commit in two directories with two home directories: the programs must be the same bytes
	tests/reproducible.sh

# Directory of the real agents that `make test-foreign` installed, for the benchmark.
FOREIGN = $(or $(ACP_FOREIGN_DIR),$(abspath $(TARGET_DIR)/foreign))

# With the features of `make build`, whose programs are measured: see tests/Cargo.toml.
bench: build ## Measure against the raw pipe of the same agent, other wrappers and other servers (ARGS="plane --check")
	$(RELEASE) $(CARGO) build --release --locked -p acp-tests --no-default-features --bins
	tests/benches/peers.sh "$(TARGET_DIR)/peers" "$(FOREIGN)"
	ACP_FOREIGN_DIR="$(FOREIGN)" $(RELEASE) $(CARGO) bench --locked -p acp-tests --no-default-features --bench figures -- $(ARGS)

# The figures are those of other programs, so that how the benchmark itself is built does not matter.
bench-wrapper: wrapper ## Measure the wrapper beside tini, dumb-init and catatonit (ARGS=--check fails on a missed limit)
	tests/benches/peers.sh "$(TARGET_DIR)/peers"
	$(CARGO) bench --locked --profile dev -p acp-tests --bench figures -- wrapper $(ARGS)

fmt: ## Format the code
	$(CARGO) fmt --all

deny: ## Check licences, crates and sources of dependencies against deny.toml (fetches cargo-deny if it is missing)
	.ci/deny

lint: ## Check the format, clippy and the documentation, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items
