#!/usr/bin/env bash
# Installs the ACP clients of `make test-foreign` into DIRECTORY/clients, in the versions and with the hashes of the lock
# files beside this script: the official libraries for TypeScript, Python and Rust, and acpx. DIRECTORY is that of
# tests/foreign/install.sh, whose Node runs the first. No install script of a package is run, and nothing outside of the
# directory is changed. Where there is no Python for it, that client is not installed: the file python-missing says why, and
# its tests say so and are skipped, or fail in CI.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
base=${1:?usage: install.sh DIRECTORY}
base=$(cd "$base" && pwd)
dir=$base/clients
mkdir -p "$dir"

fail() {
    echo "tests/clients/install.sh: $*" >&2
    exit 1
}

# Prints the hash of what a client is installed from.
content() {
    cat "$here/install.sh" "$@" | sha256sum
}

# True if NAME is installed from these files already.
is_installed() {
    local name=$1
    shift
    rm -f "$dir/$name-missing"
    [ -f "$dir/$name/stamp" ] && [ "$(cat "$dir/$name/stamp")" = "$(content "$@")" ]
}

# Prints the hashes in a lock file of npm.
hashes() {
    sed -n 's/^ *"integrity": "\(.*\)",\{0,1\}$/\1/p' "$1"
}

# Installs an npm package with its lock file, with the npm that tests/foreign/install.sh has found or installed. `npm ci`
# refuses lock files without optional packages that their authors never published, as acpx has them: so hashes are compared.
npm_packages() {
    local from=$here/$1 to=$dir/$1 found
    is_installed "$1" "$from/package.json" "$from/package-lock.json" && return
    rm -rf "$to"
    mkdir -p "$to"
    cp "$from/package.json" "$from/package-lock.json" "$to"
    # This Node runs npm only: the packages run with the pinned one.
    (cd "$to" && npm install --ignore-scripts --omit=optional --no-save --no-audit --no-fund --fetch-retries=5 --loglevel=error)
    found=$(hashes "$to/node_modules/.package-lock.json" | grep -vxF -f <(hashes "$from/package-lock.json") || true)
    [ -z "$found" ] || fail "$1: packages are installed that its lock file does not pin: $found"
    content "$from/package.json" "$from/package-lock.json" >"$to/stamp"
}

typescript() {
    npm_packages typescript
    # Node looks for packages beside the program.
    cp "$here"/typescript/*.ts "$dir/typescript"
}

acpx() {
    npm_packages acpx
    mkdir -p "$dir/acpx/bin"
    cat >"$dir/acpx/bin/acpx" <<END
#!/bin/sh
exec "$base/bin/node" "$dir/acpx/node_modules/acpx/dist/cli.js" "\$@"
END
    chmod +x "$dir/acpx/bin/acpx"
}

# Prints a Python for which requirements.txt has hashes, and which has pip.
python_with_pip() {
    local name
    for name in python3 python3.13 python3.14 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null &&
            "$name" -m pip --version >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    return 1
}

python() {
    local from=$here/python to=$dir/python program
    if ! is_installed python "$from/requirements.txt"; then
        rm -rf "$to"
        if ! program=$(python_with_pip); then
            echo "no Python 3.11 to 3.14 with pip in PATH" >"$dir/python-missing"
            echo "tests/clients/install.sh: the client for Python is not installed: $(cat "$dir/python-missing")" >&2
            return
        fi
        "$program" -m pip install --quiet --no-deps --require-hashes --only-binary :all: --no-warn-script-location \
            --disable-pip-version-check --root-user-action ignore --target "$to/packages" -r "$from/requirements.txt"
        ln -s "$("$program" -c 'import sys; print(sys.executable)')" "$to/python"
        content "$from/requirements.txt" >"$to/stamp"
    fi
    cp "$from"/*.py "$to"
}

# Needs the C compiler that the product needs, too.
rust() {
    "${CARGO:-cargo}" build --quiet --locked --manifest-path "$here/rust/Cargo.toml" --target-dir "$dir/rust"
}

typescript
python
rust
acpx
