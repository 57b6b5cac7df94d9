#!/bin/sh
# The checks that mostly compile. `make test` runs them beside the chaos suite and the browser tests, which wait most of the
# time. Only the first one uses a service: PostgreSQL describes the queries.
set -eu
cd "$(dirname "$0")/.."

echo "==> Checking that the queries are recorded"
cargo xtask prepare --check
sh xtask/lint.sh compiled
echo "==> Running the examples in the documentation"
cargo test --workspace --exclude milvaion-xtask --doc
echo "==> Testing the build tool"
# In the profile in which it was compiled.
cargo test --profile local --package milvaion-xtask
echo "==> Testing the checker of the chaos suite"
python3 -m unittest discover -s end2end/chaos/checker
