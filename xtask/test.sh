#!/bin/sh
# Runs the tests on the services that DATABASE_URL, REDIS_URL and AMQP_URL name. `make test` starts them and calls this.
#   test.sh all       all tests
#   test.sh browser   only the browser tests
set -eu
cd "$(dirname "$0")/.."
part=${1:-all}
: "${DATABASE_URL:?is not set: run this through make test}"
: "${REDIS_URL:?is not set: run this through make test}"
: "${AMQP_URL:?is not set: run this through make test}"

# These services live as long as the tests. Synced, the tests wait for the disk, and a checkpoint of the hundreds of
# databases stops all of them for seconds. Tests of crashes start services of their own, which do sync.
psql "$DATABASE_URL" --quiet --no-psqlrc --set ON_ERROR_STOP=1 \
    --command 'ALTER SYSTEM SET fsync = off' \
    --command 'ALTER SYSTEM SET full_page_writes = off' \
    --command 'SELECT pg_reload_conf()' >/dev/null

if [ "$part" = all ]; then
    echo "==> Checking that the queries are recorded"
    cargo xtask prepare --check

    echo "==> Running the Rust tests"
    if cargo nextest --version >/dev/null 2>&1; then
        # Many tests wait for a service most of the time, so there are more of them at once than processors.
        cargo nextest run --workspace --exclude milvaion-xtask --test-threads $(($(nproc) * 3 / 2))
        # nextest does not run the examples in the documentation.
        cargo test --workspace --exclude milvaion-xtask --doc
    else
        cargo test --workspace --exclude milvaion-xtask
    fi
    # In the profile in which the build tool was just compiled.
    cargo test --profile local --package milvaion-xtask

    echo "==> Testing the checker of the chaos suite"
    python3 -m unittest discover -s end2end/chaos/checker
    echo "==> Running the chaos suite (short set)"
    target/debug/chaos --set short
fi

echo "==> Running the browser tests"
cd end2end
exec npx --no-install playwright test
