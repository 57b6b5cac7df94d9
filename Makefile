# The one list of commands. `make` alone prints it.
# Everything here also works without a terminal, as root or not, and beside a running `make run`.

.DEFAULT_GOAL := help
SHELL := /bin/sh

# Queries are checked against the record in server/.sqlx, so that a build needs no database.
export SQLX_OFFLINE := true

SERVER := milvaion-server milvaion-builtin
TEST_SERVICES := target/debug/milvaion services --data target/test-services --
# What tests compile, in one feature set: building the binaries alone would compile dependencies a second time.
TESTED := --workspace --exclude milvaion-xtask

.PHONY: help install install-run run test e2e lint prepare bench chaos seed-10m clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## Install what running and testing need (Debian packages, wasm target, npm packages)
	@sh xtask/install.sh test

install-run: ## Install only what `make run` needs
	@sh xtask/install.sh run

run: install-run ## Build and start the server with private services and one worker (PORT=… picks the port)
	@echo "==> Building the browser side"
	@cargo xtask front --release
	@echo "==> Building the server and the worker (the first time takes several minutes)"
	@cargo build --release $(addprefix --package ,$(SERVER))
	@exec setpriv --pdeathsig TERM -- target/release/milvaion run --with-worker target/release/milvaion-worker

test: install lint ## Check everything: formatting, lints, Rust tests, faults and browser tests, on services of their own
	@echo "==> Building the server, the worker and their tests"
	@cargo build $(TESTED) --all-targets
	@$(TEST_SERVICES) sh xtask/test.sh all

e2e: install ## Only the browser tests
	@cargo build $(TESTED) --all-targets
	@$(TEST_SERVICES) sh xtask/test.sh browser

lint: ## Formatting, clippy, licences and unused dependencies
	@sh xtask/lint.sh

# The services come from the last server that was built: the present one may not compile until its queries are recorded.
prepare: install-run ## Record what PostgreSQL says about the server's queries (after changing one)
	@if [ -n "$$DATABASE_URL" ]; then \
		cargo xtask prepare; \
	else \
		[ -x target/debug/milvaion ] || cargo build --package milvaion-server; \
		$(TEST_SERVICES) cargo xtask prepare; \
	fi

# The services of a measurement: with synced writes, empty at its beginning, gone at its end.
BENCH_SERVICES := target/release/milvaion services --data target/bench-services --
BENCH_PROGRAMS := cargo build --release --package milvaion-server --package milvaion-bench

bench: install-run ## Measure everything in docs/PERFORMANCE.md, peers included (release build; FIGURE=name for one)
	@$(BENCH_PROGRAMS)
	@if [ -z "$(FIGURE)$(filter 0,$(BENCH_PEERS))" ] || [ "$(FIGURE)" = peers ]; then sh end2end/bench/install.sh; fi
	@FIGURE="$(FIGURE)" $(BENCH_SERVICES) target/release/bench

# Long for `make chaos`, whose runs are about an hour; the tests have the short set.
chaos: install-run ## Take services and processes away and see what is lost (SCENARIO=redis_flushed,rabbitmq_killed COUNT=… SEED=… SET=short SABOTAGE=skip_claim)
	@cargo build $(TESTED) --bins
	@target/debug/chaos --set $(or $(SET),long) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(COUNT),--count $(COUNT)) \
		$(if $(SEED),--seed $(SEED)) $(if $(SABOTAGE),--sabotage $(SABOTAGE))

# With DATABASE_URL: fills that database and ends. Without: fills a private one, then runs a server on it until Ctrl-C.
seed-10m: install-run ## Look at the dashboard over ten million occurrences (release build; SEED_ROWS=… for other numbers)
	@$(BENCH_PROGRAMS)
	@if [ -n "$$DATABASE_URL" ]; then \
		target/release/bench seed; \
	else \
		cargo xtask front --release && \
		$(BENCH_SERVICES) sh -c 'target/release/bench seed && exec target/release/milvaion run'; \
	fi

clean: ## Delete what was built; data in .milvaion stays
	@cargo clean
	@rm -rf style/node_modules end2end/node_modules end2end/test-results end2end/playwright-report
	@echo "Built files are gone. The data of \`make run\` is still in .milvaion: delete that folder to begin with nothing."
