#!/usr/bin/env bash
# Installs the agents of `make test-foreign-nightly` into DIRECTORY/nightly: Gemini CLI from npm as packages.txt pins it,
# Mistral Vibe from PyPI as vibe.txt pins it. Root is not needed, and nothing outside of the directory is changed.
#
# Vibe needs Python 3.12, 3.13 or 3.14: one in PATH that has pip, or, on Debian 11 and 12, Python 3.13 of Debian 13. That
# one is downloaded with apt-get from the mirrors that the machine has configured, checked against Debian's keys, and
# unpacked beside the agents; it runs with the loader and the libraries of its own release. Where there is neither, the
# file vibe-missing says why, and the test of Vibe says so and is skipped.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
base=${1:?usage: install-nightly.sh DIRECTORY}
"$here/install.sh" "$base"
base=$(cd "$base" && pwd)
dir=$base/nightly

fail() {
    echo "install-nightly.sh: $*" >&2
    exit 1
}

# The n-th word of a role's line in packages.txt.
word() {
    awk -v role="$1" -v n="$2" '$1 == role { print $n; found = 1 } END { exit !found }' "$here/packages.txt"
}

want=$(cat "$here/packages.txt" "$here/vibe.txt" "$here/install-nightly.sh" | sha256sum)
if [ -f "$dir/stamp" ] && [ "$(cat "$dir/stamp")" = "$want" ]; then
    echo "agents of the nightly run are installed in $dir"
    exit 0
fi
rm -rf "$dir"
mkdir -p "$dir/bin" "$dir/home"
export HOME=$dir/home

gemini() {
    echo '{"private": true}' >"$dir/package.json"
    (cd "$dir" && npm install --ignore-scripts --omit=optional --no-save --no-package-lock --no-audit --no-fund \
        --fetch-retries=5 --loglevel=error "$(word gemini 2)@$(word gemini 3)")
    grep -qF "\"integrity\": \"$(word gemini 4)\"" "$dir/node_modules/.package-lock.json" ||
        fail "$(word gemini 2) is not the package that packages.txt pins"
    cat >"$dir/bin/gemini" <<END
#!/bin/sh
exec "$base/bin/node" "$dir/node_modules/@google/gemini-cli/bundle/gemini.js" "\$@"
END
    chmod +x "$dir/bin/gemini"
}

# Prints a Python in PATH for which vibe.txt has hashes, and which has pip.
python_in_path() {
    local name
    for name in python3.13 python3.14 python3.12 python3; do
        if "$name" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null &&
            "$name" -m pip --version >/dev/null 2>&1; then
            command -v "$name"
            return
        fi
    done
    return 1
}

# Unpacks Python 3.13 of Debian 13 into $dir/python.
python_of_debian() {
    local ID= VERSION_CODENAME= root=$dir/python apt=$dir/python/apt deb loader
    [ -r /etc/os-release ] && . /etc/os-release
    if [ "$ID" != debian ] || ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        return 1
    fi
    case $VERSION_CODENAME in bullseye | bookworm) ;; *) return 1 ;; esac
    mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
    if [ -f /etc/apt/sources.list.d/debian.sources ]; then
        sed -E "s/$VERSION_CODENAME-(updates|backports)//g; s/$VERSION_CODENAME/trixie/g" \
            /etc/apt/sources.list.d/debian.sources >"$apt/sources/debian.sources"
    fi
    if [ -f /etc/apt/sources.list ]; then
        sed -nE "s/^(deb .*) $VERSION_CODENAME(-security)? (main).*/\1 trixie\2 \3/p" \
            /etc/apt/sources.list >"$apt/sources/debian.list"
    fi
    cat >"$apt/apt.conf" <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$apt/sources";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "$apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
END
    # As root, apt-get would otherwise download as a user who may not enter this directory.
    [ "$(id -u)" != 0 ] || echo 'APT::Sandbox::User "root";' >>"$apt/apt.conf"
    (cd "$apt/debs" && apt-get -qq -c "$apt/apt.conf" update && apt-get -qq -c "$apt/apt.conf" download \
        python3.13-minimal libpython3.13-minimal libpython3.13-stdlib python3-pip-whl \
        libc6 libgcc-s1 libstdc++6 libexpat1 zlib1g libssl3t64 libbz2-1.0 libffi8 liblzma5 libsqlite3-0 libuuid1) ||
        return 1
    for deb in "$apt/debs"/*.deb; do
        dpkg-deb -x "$deb" "$root"
    done
    rm -rf "$apt"
    loader=$root/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
    cat >"$dir/bin/python" <<END
#!/bin/sh
exec "$loader" --library-path "${loader%/*}" "$root/usr/bin/python3.13" "\$@"
END
    chmod +x "$dir/bin/python"
    "$dir/bin/python" -c 'import ctypes, sqlite3, ssl'
}

vibe() {
    local python
    if python=$(python_in_path); then
        ln -s "$python" "$dir/bin/python"
        "$python" -m pip --version
        pip=("$python" -m pip)
    elif python_of_debian; then
        pip=("$dir/bin/python" "$(echo "$dir"/python/usr/share/python-wheels/pip-*.whl)/pip")
    else
        echo "no Python 3.12, 3.13 or 3.14 with pip in PATH, and none could be had from Debian 13" >"$dir/vibe-missing"
        echo "install-nightly.sh: Mistral Vibe is not installed: $(cat "$dir/vibe-missing")" >&2
        return
    fi
    "${pip[@]}" install --quiet --no-deps --require-hashes --only-binary :all: --no-warn-script-location \
        --disable-pip-version-check --root-user-action ignore --target "$dir/vibe" -r "$here/vibe.txt"
    cat >"$dir/bin/vibe-acp" <<END
#!/bin/sh
exec "$dir/bin/python" -c 'import sys
sys.path.insert(0, "$dir/vibe")
sys.argv[0] = "vibe-acp"
from vibe.acp.entrypoint import main
main()' "\$@"
END
    chmod +x "$dir/bin/vibe-acp"
}

gemini
vibe
for agent in gemini vibe-acp; do
    [ -e "$dir/bin/$agent" ] || continue
    version=$("$dir/bin/$agent" --version) || fail "$agent does not run"
    echo "$agent $version"
done
echo "$want" >"$dir/stamp"
