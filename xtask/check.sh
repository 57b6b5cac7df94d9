#!/bin/sh
# Runs the checks of a change, one step after the other.
#   check.sh test   what a change must pass: `make test`
#   check.sh all    everything: `make test-all`
set -eu
cd "$(dirname "$0")/.."
set_of_checks=${1:?test or all}
. xtask/env.sh

rm -rf "$BUDGET"
mkdir -p "$BUDGET"
step install sh xtask/install.sh "$set_of_checks"
step "lints and build" sh xtask/build-tests.sh "$set_of_checks"
# Private services, which are deleted with everything in them at the end.
target/debug/milvaion services --data target/test-services -- sh xtask/test.sh "$set_of_checks"
if [ "$set_of_checks" = all ]; then cargo xtask budget --all; else cargo xtask budget; fi
