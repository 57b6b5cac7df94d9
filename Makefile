# All commands of the project. `make` alone prints them.
# They also work without a terminal, with or without root, and while `make run` is running.

.DEFAULT_GOAL := help
SHELL := /bin/sh

# Queries are checked against the record in server/.sqlx, so a build needs no database.
export SQLX_OFFLINE := true

SERVER := milvaion-server milvaion-builtin
TEST_SERVICES := target/debug/milvaion services --data target/test-services --

.PHONY: help install install-run run test test-all e2e screenshots lint prepare bench chaos seed-10m clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## Install what running and testing need (Debian packages, wasm target, npm packages)
	@sh xtask/install.sh all

install-run: ## Install only what `make run` needs
	@sh xtask/install.sh run

# The profile `local` takes the least time to compile. Its browser side is in a folder of its own, so that `make test`,
# which builds another one, does not replace the files of a running server.
run: ## Build and start the server with private services and one worker (PORT=… picks the port)
	@echo "Step 1 of 5: installing the packages that are missing"
	@sh xtask/install.sh run
	@echo "Step 2 of 5: build tool (the first time: about 80 crates in about a minute, after their download)"
	@cargo build --profile local --package milvaion-xtask
	@cargo xtask local
	@echo "Step 5 of 5: starting the services, the server and a worker"
	@export SITE_ROOT="$${SITE_ROOT:-target/site-local}" && \
		exec setpriv --pdeathsig TERM -- target/local/milvaion run --with-worker target/local/milvaion-worker

test: ## Run what a change must pass: lints, Rust tests, fault tests and browser tests, on private services
	@sh xtask/check.sh test

test-all: ## Run every check: also exhaustive tests, the release browser side, all documents and lints
	@sh xtask/check.sh all

e2e: ## Run only the browser tests of `make test`
	@sh xtask/install.sh test
	@sh xtask/build-tests.sh browser
	@$(TEST_SERVICES) sh xtask/test.sh browser

screenshots: install ## Take the screenshots in docs/images from real pages
	@cargo build $(addprefix --package ,$(SERVER))
	@cargo xtask front --release
	@$(TEST_SERVICES) sh -c 'cd end2end && exec npx --no-install playwright test --config screenshots.config.ts'

lint: ## Check formatting, lints, documentation, language, links, licences and unused dependencies
	@sh xtask/lint.sh

# The services come from the last built server, because the current one may not compile until its queries are recorded.
prepare: install-run ## Record PostgreSQL's description of the server's queries (after changing one)
	@if [ -n "$$DATABASE_URL" ]; then \
		cargo xtask prepare; \
	else \
		[ -x target/debug/milvaion ] || cargo build --package milvaion-server; \
		$(TEST_SERVICES) cargo xtask prepare; \
	fi

# The services of a measurement: private, with synced writes, created empty and deleted at the end.
BENCH_SERVICES := target/release/milvaion services --data target/bench-services --
# With the worker of the built-in jobs, so that they are compiled with the features of a released program, and cargo uses
# what another release build has compiled.
BENCH_PROGRAMS := cargo build --release $(addprefix --package ,$(SERVER)) --package milvaion-bench
# The other job systems are measured if FIGURE names them, and in a full run unless BENCH_PEERS=0.
BENCH_NEEDS_PEERS := $(or $(findstring peers,$(FIGURE)),$(if $(FIGURE)$(filter 0,$(BENCH_PEERS)),,yes))

# AGAINST=… names `target/release` of another clone, in which `make bench` was built, such as one of the commit before.
bench: install-run ## Measure docs/PERFORMANCE.md, peers included (FIGURE=name for one; AGAINST=… compares two builds)
	@$(BENCH_PROGRAMS)
	@$(if $(BENCH_NEEDS_PEERS),sh end2end/bench/install.sh)
	@FIGURE="$(FIGURE)" AGAINST="$(AGAINST)" $(BENCH_SERVICES) target/release/bench

# The default set of this command is `long` and takes about two hours; `make test` runs `smoke`, `make test-all` runs `short`.
chaos: install-run ## Inject faults and verify that no occurrence is lost (SCENARIO=redis_flushed,rabbitmq_killed COUNT=… SEED=… SET=smoke|short|long SABOTAGE=skip_claim)
	@. xtask/env.sh && cargo build $$TESTED --bins
	@target/debug/chaos --set $(or $(SET),long) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(COUNT),--count $(COUNT)) \
		$(if $(SEED),--seed $(SEED)) $(if $(SABOTAGE),--sabotage $(SABOTAGE))

# With DATABASE_URL: fills that database and exits. Without it: fills a private one and runs a server on it until Ctrl-C.
seed-10m: install-run ## Run the dashboard on ten million occurrences (release build; SEED_ROWS=… for other numbers)
	@$(BENCH_PROGRAMS)
	@if [ -n "$$DATABASE_URL" ]; then \
		target/release/bench seed; \
	else \
		cargo xtask front --release && \
		$(BENCH_SERVICES) sh -c 'target/release/bench seed && exec target/release/milvaion run'; \
	fi

clean: ## Delete build output; the data in .milvaion stays
	@cargo clean
	@rm -rf style/node_modules end2end/node_modules end2end/test-results end2end/playwright-report
	@echo "The build output is deleted. The data of \`make run\` stays in .milvaion: delete that folder to start empty."
