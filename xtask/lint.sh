#!/bin/sh
# Checks formatting, lints, documentation, language, links, licences, sources and unused dependencies.
#   lint.sh           all checks
#   lint.sh quick     without those that compile our packages and their dependencies once more
#   lint.sh compiled  only those
# Each check always runs: a check that is skipped where a tool is missing would be green for the wrong reason.
set -eu
cd "$(dirname "$0")/.."
part=${1:-all}

if [ "$part" != compiled ]; then
    echo "==> Checking the formatting"
    cargo fmt --all -- --check
    echo "==> Checking the language, the links of the documents, and the dependencies"
    cargo xtask lint
fi

if [ "$part" != quick ]; then
    echo "==> Checking the lints"
    cargo clippy --workspace --all-targets -- -D warnings
    echo "==> Checking the dependencies of the SDK without its optional parts"
    packages=$(cargo tree --package milvaion-worker --no-default-features --features client,native-tls --edges normal --prefix none)
    if printf '%s\n' "$packages" | grep -E '^(sqlx|sqlx-[a-z]+|tokio-postgres|libsqlite3-sys|chrono-tz|axum|leptos) '; then
        echo "The SDK must not need these packages." >&2
        exit 1
    fi
    echo "==> Checking the SDK without its optional parts"
    cargo clippy --package milvaion-worker --lib --no-default-features --features rustls -- -D warnings
    echo "==> Checking the documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
fi
