#!/bin/sh
# Runs the tests on the services that DATABASE_URL, REDIS_URL and AMQP_URL name. The make targets start them and call this.
#   test.sh test      what a change must pass
#   test.sh all       everything, the exhaustive tests included
#   test.sh browser   only the browser tests of `test`
# CONTRIBUTING.md says how a test is assigned to a set.
set -eu
cd "$(dirname "$0")/.."
. xtask/env.sh
part=${1:?test, all or browser}
: "${DATABASE_URL:?is not set: run this through make test}"
: "${REDIS_URL:?is not set: run this through make test}"
: "${AMQP_URL:?is not set: run this through make test}"

# The private services live as long as the tests. Synced, the tests wait for the disk, and a checkpoint of the hundreds of
# databases stops all of them for seconds; autovacuum visits each database once a minute. Tests of crashes start services of
# their own, which do sync. A PostgreSQL whose data is elsewhere is not private, and stays as it is.
query() { psql "$DATABASE_URL" --quiet --no-psqlrc --tuples-only --no-align --set ON_ERROR_STOP=1 "$@"; }
case $(query --command 'SHOW data_directory') in
    "$(pwd -P)"/target/*)
        query --command 'ALTER SYSTEM SET fsync = off' \
            --command 'ALTER SYSTEM SET full_page_writes = off' \
            --command 'ALTER SYSTEM SET autovacuum = off' \
            --command "ALTER SYSTEM SET max_wal_size = '8GB'" \
            --command 'SELECT pg_reload_conf()' >/dev/null
        ;;
esac

# Many tests wait for a service most of the time, so there are more of them at once than processors.
rust_tests() {
    echo "==> Running the Rust tests"
    if cargo nextest --version >/dev/null 2>&1; then
        # shellcheck disable=SC2086  # The list is split into words on purpose.
        cargo nextest run $TESTED --tests --profile "$1" --test-threads $(($(nproc) * 3 / 2))
        # The tests of the program that injects faults, which cost an executable of their own.
        # shellcheck disable=SC2086
        [ "$1" = default ] || cargo nextest run $TESTED --bin chaos
        return
    fi
    # cargo test measures no single test, so the budget gets none.
    mkdir -p "target/nextest/$1"
    echo '<testsuites/>' >"target/nextest/$1/junit.xml"
    # shellcheck disable=SC2086
    if [ "$1" = all ]; then cargo test $TESTED --tests; else cargo test $TESTED --tests -- --skip exhaustive::; fi
}

browser_tests() {
    echo "==> Running the browser tests"
    (cd end2end && npx --no-install playwright test "$@")
}

chaos_suite() {
    echo "==> Running the chaos suite (set $1)"
    target/debug/chaos --set "$1"
}

# Runs the checks that mostly compile, at a priority that never takes a processor from the tests, of which the chaos suite
# measures how late occurrences start. In a session of their own, so that all their processes can be ended together.
start_side_checks() {
    side_log=target/side-checks.log
    setsid chrt --idle 0 sh xtask/side-checks.sh "$1" >"$side_log" 2>&1 &
    side=$!
    trap 'kill -- "-$side" 2>/dev/null || true' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

wait_for_side_checks() {
    echo "==> Waiting for the checks beside the tests"
    wait "$side" || { cat "$side_log"; echo "a check beside the tests failed: see above" >&2; exit 1; }
    cat "$side_log"
}

case $part in
    test)
        step rust rust_tests default
        start_side_checks test
        step chaos chaos_suite smoke
        step browser browser_tests --grep-invert @all
        step "rest of the side checks" wait_for_side_checks
        ;;
    all)
        step rust rust_tests all
        start_side_checks all
        step chaos chaos_suite short
        step browser browser_tests
        step "rest of the side checks" wait_for_side_checks
        ;;
    browser) browser_tests --grep-invert @all ;;
    *) echo "test.sh: test, all or browser" >&2; exit 2 ;;
esac
