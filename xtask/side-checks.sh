#!/bin/sh
# The checks that need neither services nor a browser. `make test` runs them beside the chaos suite and the browser tests,
# which wait most of the time.
set -eu
cd "$(dirname "$0")/.."

sh xtask/lint.sh compiled
echo "==> Running the examples in the documentation"
cargo test --workspace --exclude milvaion-xtask --doc
echo "==> Testing the build tool"
# In the profile in which it was compiled.
cargo test --profile local --package milvaion-xtask
echo "==> Testing the checker of the chaos suite"
python3 -m unittest discover -s end2end/chaos/checker
