#!/bin/sh
# Installs whatever is missing, and prints what it installs. Each step is skipped if it is done.
#   install.sh run    what `make run` needs
#   install.sh test   the same, a browser for the tests, and Python packages for the worker in Python
#   install.sh all    the same, Prometheus, Python packages for the check of the API, and npm packages for the worker in Node.js
set -eu
cd "$(dirname "$0")/.."
purpose=${1:-run}

say() { printf '==> %s\n' "$*"; }
die() { printf 'make: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# --- Debian packages. Each is named if the program or library it provides is missing. ---
missing=
need() { missing="$missing $1"; }
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || need postgresql
has redis-server || need redis-server
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || has rabbitmq-server || need rabbitmq-server
has setpriv || need util-linux
has cc || need build-essential
has pkg-config || need pkg-config
if has pkg-config && pkg-config --exists openssl; then :; else need libssl-dev; fi
has node || need nodejs
has npm || need npm
if [ "$purpose" != run ]; then
    has chromium-headless-shell || need chromium-headless-shell
    # For the worker in Python. Debian's own Python comes first, because its packages are built for that version.
    python() { for python in /usr/bin/python3 python3; do "$python" -c "import $1" 2>/dev/null && return; done; return 1; }
    python pika || need python3-pika
    python redis || need python3-redis
fi
if [ "$purpose" = all ]; then
    # For the metrics: the program that checks alert rules, and Prometheus itself.
    has promtool && has prometheus || need prometheus
    # For the tools that are installed from PyPI.
    python3 -c 'import ensurepip, venv' 2>/dev/null || need python3-venv
fi

if [ -n "$missing" ]; then
    has apt-get || die "these Debian packages are missing and apt-get is not available: install the equivalents of$missing, then run make again"
    if [ "$(id -u)" = 0 ]; then
        root=
    elif has sudo; then
        root=sudo
    else
        die "these packages are missing, and installing them needs root or sudo: ask an administrator to run apt-get install$missing"
    fi
    say "Installing Debian packages:$missing"

    # Debian starts a service on installation. Milvaion starts private ones, so the system's services stay off.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | $root tee "$policy" >/dev/null
        $root chmod 755 "$policy"
        trap '$root rm -f "$policy"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
    fi
    clusters=/etc/postgresql-common/createcluster.conf
    if [ ! -e "$clusters" ]; then
        $root mkdir -p "${clusters%/*}"
        echo 'create_main_cluster = false' | $root tee "$clusters" >/dev/null
    fi

    $root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    # shellcheck disable=SC2086  # The list is split into words on purpose.
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing ||
        die "apt-get could not install$missing: see its message above"

    # The services also stay off after the next boot. Only the ones installed just now are changed.
    if [ -d /run/systemd/system ]; then
        for service in postgresql redis-server rabbitmq-server prometheus; do
            case " $missing " in
                *" $service "*) $root systemctl --quiet disable "$service" || true ;;
            esac
        done
    fi
fi

# --- Rust. ---
has cargo || die "Rust is not installed: install it with rustup, then run make again"
wasm=wasm32-unknown-unknown
if ! [ -d "$(rustc --print sysroot)/lib/rustlib/$wasm" ]; then
    has rustup || die "Rust's target $wasm is missing, and adding it needs rustup: install Rust with rustup, then run make again"
    say "Adding Rust's target $wasm"
    rustup target add "$wasm"
fi
if [ "$purpose" != run ]; then
    for component in rustfmt clippy; do
        has "cargo-${component#rust}" && cargo "${component#rust}" --version >/dev/null 2>&1 && continue
        has rustup || die "Rust's $component is missing, and adding it needs rustup: install it, then run make again"
        say "Adding Rust's $component"
        rustup component add "$component"
    done
fi

# --- npm packages: style/ for the browser side, end2end/ for the browser tests, and those of the worker in Node.js. ---
packages() {
    [ -f "$1/package-lock.json" ] || return 0
    # npm writes this file last, so an interrupted installation does not count.
    stamp="$1/node_modules/.package-lock.json"
    if [ -f "$stamp" ] && [ -z "$(find "$1/package-lock.json" -newer "$stamp")" ]; then return 0; fi
    say "Installing npm packages in $1/"
    # The browser tests use Debian's build of Chromium.
    (cd "$1" && PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm ci --no-audit --no-fund) ||
        die "npm could not install the packages of $1/: see its message above"
}
packages style
if [ "$purpose" != run ]; then packages end2end; fi
if [ "$purpose" = all ]; then packages examples/node-worker; fi

# --- Python packages, in a folder of their own: the program that checks the API against its document. ---
if [ "$purpose" = all ]; then
    tools=target/tools/api
    if ! [ -f "$tools/installed" ] || [ end2end/api/requirements.txt -nt "$tools/installed" ]; then
        say "Installing Python packages in $tools"
        python3 -m venv "$tools" &&
            "$tools/bin/pip" install --quiet --disable-pip-version-check --requirement end2end/api/requirements.txt ||
            die "pip could not install the packages of end2end/api/requirements.txt: see its message above"
        touch "$tools/installed"
    fi
fi
