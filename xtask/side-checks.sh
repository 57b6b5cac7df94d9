#!/bin/sh
# The checks that run beside the chaos suite and the browser tests, which wait most of the time.
#   side-checks.sh test   what a change must pass
#   side-checks.sh all    also the checks that compile everything once more
set -eu
cd "$(dirname "$0")/.."
. xtask/env.sh

echo "==> Running the examples in the documentation"
# shellcheck disable=SC2086  # The list is split into words on purpose.
cargo test $TESTED --doc
echo "==> Testing the build tool"
# In the profile in which it was compiled.
cargo test --profile local --package milvaion-xtask
echo "==> Testing the checker of the chaos suite"
python3 -m unittest discover -s end2end/chaos/checker
if [ "${1:-test}" = all ]; then
    # Only this check uses a service: PostgreSQL describes the queries.
    echo "==> Checking that the queries are recorded"
    cargo xtask prepare --check
    sh xtask/lint.sh compiled
fi
