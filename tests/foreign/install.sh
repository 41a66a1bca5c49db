#!/usr/bin/env bash
# Installs the real agents of `make test-foreign` into the given directory: Node, Qwen Code and OpenCode, each in the
# version and with the hash that packages.txt names. Nothing outside of that directory is changed, except that npm
# itself is installed when it is missing and the user is root on a system with apt. No install script of a package is
# run. A second run finds its stamp and does nothing.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
dir=${1:?usage: install.sh DIRECTORY}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
modules=$dir/node_modules

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

# The n-th word of a role's line in packages.txt.
word() {
    awk -v role="$1" -v n="$2" '$1 == role { print $n; found = 1 } END { exit !found }' "$here/packages.txt"
}

want=$(cat "$here/packages.txt" "$here/install.sh" | sha256sum)
if [ -f "$dir/stamp" ] && [ "$(cat "$dir/stamp")" = "$want" ]; then
    echo "foreign agents are installed in $dir"
    exit 0
fi
[ "$(uname -sm)" = "Linux x86_64" ] || fail "there are no pinned agents for $(uname -sm)"
rm -rf "$dir/stamp" "$dir/bin" "$modules" "$dir/package.json"

if ! command -v npm >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "npm is missing: installing it with apt-get"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm >/dev/null
    else
        fail "npm is missing, and it takes root to install it: run \`apt-get install npm\`"
    fi
fi

roles="node qwen opencode"
grep -qw avx2 /proc/cpuinfo || roles="node qwen opencode-baseline"
packages=()
for role in $roles; do
    packages+=("$(word "$role" 2)@$(word "$role" 3)")
done
echo '{"private": true}' >"$dir/package.json"
(cd "$dir" && npm install --ignore-scripts --omit=optional --no-save --no-package-lock --no-audit --no-fund \
    --fetch-retries=5 --loglevel=error "${packages[@]}")

# npm has checked each archive against the hash that the registry told; here that hash is checked against ours.
for role in $roles; do
    grep -qF "\"integrity\": \"$(word "$role" 4)\"" "$modules/.package-lock.json" ||
        fail "$(word "$role" 2) is not the package that packages.txt pins"
done

mkdir "$dir/bin"
ln -s "$modules/$(word node 2)/bin/node" "$dir/bin/node"
ln -s "$modules/$(word "${roles##* }" 2)/bin/opencode" "$dir/bin/opencode"
# As the package's own launcher would start it, but in one process instead of three.
cat >"$dir/bin/qwen" <<END
#!/bin/sh
export QWEN_CODE_NO_RELAUNCH=true
exec "$dir/bin/node" --expose-gc "$modules/@qwen-code/qwen-code/cli.js" "\$@"
END
chmod +x "$dir/bin/qwen"

export HOME=$dir/home
mkdir -p "$HOME"
for agent in node qwen opencode; do
    version=$("$dir/bin/$agent" --version) || fail "$agent does not run"
    echo "$agent $version"
done
echo "$want" >"$dir/stamp"
