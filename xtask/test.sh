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

browser_tests() {
    echo "==> Running the browser tests"
    (cd end2end && npx --no-install playwright test)
}

# The private services live as long as the tests. Synced, the tests wait for the disk, and a checkpoint of the hundreds of
# databases stops all of them for seconds. Tests of crashes start services of their own, which do sync. A PostgreSQL whose
# data is elsewhere is not private, and stays as it is.
query() { psql "$DATABASE_URL" --quiet --no-psqlrc --tuples-only --no-align --set ON_ERROR_STOP=1 "$@"; }
case $(query --command 'SHOW data_directory') in
    "$(pwd -P)"/target/*)
        query --command 'ALTER SYSTEM SET fsync = off' \
            --command 'ALTER SYSTEM SET full_page_writes = off' \
            --command 'SELECT pg_reload_conf()' >/dev/null
        ;;
esac

if [ "$part" != all ]; then
    browser_tests
    exit
fi

echo "==> Running the Rust tests"
if cargo nextest --version >/dev/null 2>&1; then
    # Many tests wait for a service most of the time, so there are more of them at once than processors.
    cargo nextest run --workspace --exclude milvaion-xtask --test-threads $(($(nproc) * 3 / 2))
else
    cargo test --workspace --exclude milvaion-xtask --lib --bins --tests --examples
fi

# At a priority that never takes a processor from the suite, whose scenarios measure how late occurrences start. In a session
# of its own, so that all its processes can be ended together.
log=target/side-checks.log
setsid chrt --idle 0 sh xtask/side-checks.sh >"$log" 2>&1 &
side=$!
trap 'kill -- "-$side" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

echo "==> Running the chaos suite (short set), and beside it the checks that mostly compile"
target/debug/chaos --set short
browser_tests

echo "==> Waiting for the checks that mostly compile"
wait "$side" || { cat "$log"; echo "a check beside the tests failed: see above" >&2; exit 1; }
cat "$log"
