#!/bin/sh
# Builds what the tests run: the server, the worker, the tests, and the browser side. The builds use different profiles, so
# none waits for another, and the linker and the optimiser, which use one core, fill each other's gaps. The lints that
# compile nothing run as soon as the build tool is there, and end the whole build if one fails.
#   build-tests.sh test      the browser side in the profile that is built fastest, and the examples that tests start
#   build-tests.sh all       the browser side as users get it, with a check of its size, and all examples
#   build-tests.sh browser   the same as test, without the lints
set -eu
cd "$(dirname "$0")/.."
. xtask/env.sh
part=${1:-test}

case $part in
    # The examples are started by browser tests and by tests of workers.
    test | browser) profile=--local sizes=--estimate examples="--example schedule --example getting_started --example producer" ;;
    all) profile=--release sizes=--check examples=--examples ;;
    *) echo "build-tests.sh: test, all or browser" >&2; exit 2 ;;
esac

echo "==> Building and linting the server, the worker and their tests, and beside them the browser side"
# shellcheck disable=SC2086  # The lists are split into words on purpose.
setsid cargo build $TESTED --bins --tests $examples &
tests=$!
trap 'kill -- "-$tests" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
cargo build --profile local --package milvaion-xtask
[ "$part" = browser ] || sh xtask/lint.sh quick
cargo xtask front "$profile"
echo "==> Checking the transfer sizes"
cargo xtask sizes "$sizes"
wait "$tests"
trap - EXIT
