#!/bin/sh
# Formatting, lints, licences, unused dependencies. The last two only where their tools are installed: building them
# takes longer than the rest of the tests.
set -eu
cd "$(dirname "$0")/.."

echo "==> Checking the formatting"
cargo fmt --all -- --check
echo "==> Checking the lints"
cargo clippy --workspace --all-targets -- -D warnings

for tool in deny machete; do
    if ! command -v "cargo-$tool" >/dev/null 2>&1; then
        echo "==> cargo-$tool is not installed, so its check is left out (cargo install cargo-$tool)"
        continue
    fi
    echo "==> Checking with cargo $tool"
    case $tool in
        deny) cargo deny --offline check licenses bans sources ;;
        machete) cargo machete ;;
    esac
done
