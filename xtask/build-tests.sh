#!/bin/sh
# Builds everything that the tests run: the server, the worker, the tests, and the browser side. The two builds use different
# profiles, so neither waits for the other, and the linker and the optimiser, which use one core, fill each other's gaps.
set -eu
cd "$(dirname "$0")/.."
log=target/front.log

echo "==> Building the server, the worker and their tests, and beside them the browser side"
# The build tool itself first, because both builds would otherwise wait for its lock.
cargo build --profile local --package milvaion-xtask
cargo xtask front --release >"$log" 2>&1 &
front=$!
tests=0
cargo build --workspace --exclude milvaion-xtask --all-targets || tests=$?
wait "$front" || { cat "$log"; echo "the browser side could not be built" >&2; exit 1; }
cat "$log"
[ "$tests" -eq 0 ] || exit "$tests"
echo "==> Checking the transfer sizes"
cargo xtask sizes --check
