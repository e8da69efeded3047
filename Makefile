# Two commands set everything up on a machine with a Rust toolchain, make, python3 and pip:
#   make demo    real orders through the example sagas (NATS=1: on a real nats-server)
#   make test    everything that must pass

SHELL := /bin/bash
.DEFAULT_GOAL := help

# A build cache outside the clone is used when there is one.
ifneq ($(wildcard $(HOME)/.cache/saga-runner-target),)
export CARGO_TARGET_DIR ?= $(HOME)/.cache/saga-runner-target
endif

TARGET := $(or $(CARGO_TARGET_DIR),target)
RUNNER := $(TARGET)/release/saga-runner

.PHONY: help
help:
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

.PHONY: setup
setup: ## install what the build needs (libclang, for the MDBX binding)
	@scripts/libclang.sh
	@scripts/build-cache.sh "$(TARGET)"

.PHONY: build
build: setup ## build the release binary, stripped; its debug information lies beside it
	cargo build --release --locked
	@scripts/strip.sh $(RUNNER)
	@size=$$(stat -c %s $(RUNNER)); ((size <= 40000000)) || { echo "$(RUNNER) has $$size bytes, and 40,000,000 are its limit (ADR 214)" >&2; exit 1; }

.PHONY: release
release: build ## what is released: archive, debug information, SBOM and SHA256SUMS, in target/dist; ARCH=arm64 or amd64 for another platform
ifdef ARCH
	@program=$$(scripts/cross-build.sh $(ARCH)) && RUNS=$(RUNNER) ARCH=$(ARCH) scripts/release.sh "$$program" $(TARGET)/dist
else
	@scripts/release.sh $(RUNNER)
endif

.PHONY: demo
demo: setup ## drive real orders through the example sagas, with a build that is quick to make and slow to run; NATS=1 uses a real nats-server
	cargo build --profile demo --locked
ifdef NATS
	@server=$$(scripts/nats-server.sh) && $(TARGET)/demo/saga-runner demo --nats-server "$$server" $(DEMO_FLAGS)
else
	@$(TARGET)/demo/saga-runner demo $(DEMO_FLAGS)
endif

.PHONY: check
check: setup ## formatting, lints, docs, dependencies
	cargo fmt --all --check
	cargo clippy --all-targets --locked -- -D warnings
	cargo clippy --no-default-features --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --document-private-items --locked
	@scripts/deny.sh

.PHONY: schemas
schemas: setup ## write the JSON Schemas of definitions from the tables by which the loader reads
	SAGA_RUNNER_WRITE_SCHEMAS=1 cargo test --locked -p saga-runner-language --lib the_committed_schemas

.PHONY: cel-table
cel-table: ## write the table of what cel-go gives for CEL's extensions; needs git and go, CEL_GO=checkout
	@scripts/cel-table.sh

.PHONY: test
test: setup ## everything that must pass, with the time that each part takes
	@scripts/test.sh

.PHONY: docs
docs: ## build the documentation as a site, in target/site, and check its links; mdBook is installed if it is missing
	@scripts/site.sh

.PHONY: simulate
simulate: setup ## the runner under seeded faults on virtual time; SEEDS=2000, FROM=1, MINUTES=n, LEDGER=1 (noted; optimised), SEED=n (one, with its trace; SHORTEN=1), PLANTED=all, ARCHIVED=n
	$(if $(SEED),SEED=$(SEED)) $(if $(KEEP),KEEP=$(KEEP)) $(if $(SHORTEN),SHORTEN=$(SHORTEN)) $(if $(LEDGER),LEDGER=$(LEDGER)) \
		$(if $(LOG),LOG=$(LOG)) $(if $(MINUTES),MINUTES=$(MINUTES)) $(if $(PLANTED),PLANTED=$(PLANTED)) $(if $(ARCHIVED),ARCHIVED=$(ARCHIVED)) \
		FROM=$(or $(FROM),$(if $(PLANTED),$$((0x$$(git rev-parse --short=7 HEAD) * 10000)),1)) SEEDS=$(or $(SEEDS),2000) cargo test --locked $(if $(LEDGER),--profile simulate) --features planted --test simulator -- --nocapture \
		$(if $(PLANTED),planted_bugs_are_found_by_fresh_seeds,$(if $(ARCHIVED),in_the_archive_as_it_ended,promises_hold_under_faults))

.PHONY: fuzz
fuzz: setup ## mutants of definitions through loader and kernel; MINUTES=10, SEED=n
	HOSTILE_MINUTES=$(or $(MINUTES),10) HOSTILE_SEED=$(or $(SEED),$$(date +%s)000000) \
		cargo test --locked --test language hostile -- --nocapture

.PHONY: fuzz-api
fuzz-api: setup ## requests made from the OpenAPI document, half of them wrong, to a running runner; MINUTES=10, SEED=n
	API_MINUTES=$(or $(MINUTES),10) API_SEED=$(or $(SEED),$$(date +%s)000000) \
		cargo test --locked --features planted --test runner -- --nocapture --exact api::generated::every_answer_to_generated_requests_is_documented

.PHONY: crash
crash: setup ## SIGKILLs of the runner under load on nats-server, every sixth time of the server as well; KILLS=1000
	CRASH_KILLS=$(or $(KILLS),1000) NATS_SERVER=$${NATS_SERVER:-$$(scripts/nats-server.sh)} \
		cargo test --locked --test chaos nothing_is_lost_or_done_twice_when_runner -- --nocapture

.PHONY: faults
faults: setup ## upstreams of each kind that refuse, answer late and break off, under a runner that is killed; PIECES=5000, KILLS=10
	@scripts/nats-server.sh >/dev/null
	FAULTS_PIECES=$(or $(PIECES),5000) FAULTS_KILLS=$(or $(KILLS),10) NATS_SERVER=$$(scripts/nats-server.sh) \
		cargo test --locked --test chaos faults -- --nocapture --test-threads 1 --skip outcomes::

.PHONY: faults-isolation
faults-isolation: setup ## what a tenant feels of others that are slow, hostile and flood without end; COMMANDS=1000, ANSWER_MS=20
	ISOLATION_COMMANDS=$(or $(COMMANDS),1000) ISOLATION_ANSWER_MS=$(or $(ANSWER_MS),20) NATS_SERVER=$${NATS_SERVER:-$$(scripts/nats-server.sh)} \
		cargo test --locked --test runner a_tenant_is_served_while_others -- --nocapture

.PHONY: faults-slow-upstream
faults-slow-upstream: setup ## 150 commands, 32 at a time, answers after 35 s: each called once; COMMANDS, CONCURRENCY, ANSWER_MS, ACK_WAIT_MS
	FAULTS_COMMANDS=$(or $(COMMANDS),150) FAULTS_CONCURRENCY=$(or $(CONCURRENCY),32) \
		FAULTS_ANSWER_MS=$(or $(ANSWER_MS),35000) FAULTS_ACK_WAIT_MS=$(or $(ACK_WAIT_MS),30000) \
		NATS_SERVER=$${NATS_SERVER:-$$(scripts/nats-server.sh)} cargo test --locked --test runner -- --nocapture --exact \
		work::slow::commands_that_wait_behind_slow_calls_are_called_once_on_nats

.PHONY: faults-sql
faults-sql: setup ## sagas on two databases under kills, cuts and crashes; SAGAS=1000, KILLS=100
	@scripts/nats-server.sh >/dev/null
	@scripts/databases.sh postgres >/dev/null
	@scripts/databases.sh mariadb >/dev/null
	FAULT_SAGAS=$(or $(SAGAS),1000) FAULT_KILLS=$(or $(KILLS),100) NATS_SERVER=$$(scripts/nats-server.sh) \
		cargo test --locked --test chaos two_ledgers_are_exact -- --nocapture

.PHONY: bench
bench: build ## criterion benches, then saga-runner bench on both brokers
	cargo bench --locked
	$(RUNNER) bench
	server=$$(scripts/nats-server.sh) && $(RUNNER) bench --nats-server "$$server"

.PHONY: bench-queries
bench-queries: setup ## what operators' questions cost with many instances that wait, on nats-server; INSTANCES=100000
	@scripts/nats-server.sh >/dev/null
	cargo bench --locked --bench queries -- $(or $(INSTANCES),100000)
