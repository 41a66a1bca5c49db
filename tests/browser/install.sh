#!/usr/bin/env bash
# Installs what the tests of the web console need into DIRECTORY/browser: bin/chromium, and axe.min.js of axe-core. The browser
# is one of PATH, or else Debian's `chromium`, unpacked with the libraries that this machine lacks: nothing is installed, and root
# is needed only to fetch the lists of packages if there are none or old ones. It is no `chromium-headless-shell`, which denies
# notifications whatever its user says. It sees Debian's DejaVu fonts alone where these can be had, so that pictures are the same
# everywhere. Where neither can be had, the file `missing` says why, and the tests say so and are skipped, or fail in CI.
# usage: install.sh DIRECTORY
set -euo pipefail

base=${1:?usage: install.sh DIRECTORY}
mkdir -p "$base/browser/bin"
dir=$(cd "$base/browser" && pwd)
package=chromium
axe=4.14.1
axe_sha256=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
rm -f "$dir/missing"

missing() {
    echo "$*" >"$dir/missing"
    echo "tests/browser/install.sh: no browser: $*" >&2
    exit 0
}

# Writes bin/chromium: `launcher PROGRAM LIBRARIES`.
launcher() {
    cat >"$dir/bin/chromium" <<END
#!/bin/sh
${2:+export LD_LIBRARY_PATH="$2"}
[ ! -f "$dir/fonts.conf" ] || export FONTCONFIG_FILE="$dir/fonts.conf"
exec "$1" "\$@"
END
    chmod +x "$dir/bin/chromium"
}

# Unpacks the fonts, and makes them the only ones.
fonts() {
    [ ! -f "$dir/fonts.conf" ] || return 0
    command -v apt-get >/dev/null || return 0
    rm -rf "$dir/fonts"
    mkdir -p "$dir/fonts"
    (cd "$dir/fonts" && apt-get download fonts-dejavu-core >/dev/null 2>&1) || return 0
    # Of its own in newer releases.
    (cd "$dir/fonts" && apt-get download fonts-dejavu-mono >/dev/null 2>&1) || true
    for deb in "$dir"/fonts/*.deb; do dpkg -x "$deb" "$dir/fonts"; done
    rm -f "$dir"/fonts/*.deb
    cat >"$dir/fonts.conf" <<END
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>$dir/fonts</dir>
  <cachedir>$dir/fonts/cache</cachedir>
</fontconfig>
END
}

installed() {
    local name
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then
            launcher "$(command -v "$name")"
            return
        fi
    done
    return 1
}

# Prints the packages that an installation would add, and the one with the program's data, which it finds beside itself only.
needed() {
    apt-get install --simulate --no-install-recommends "$package" fonts-dejavu-core 2>/dev/null |
        sed -n 's/^Inst \([^ ]*\).*/\1/p' | sed '$a chromium-common' | sort -u
}

unpacked() {
    local names program root=$dir/root
    command -v apt-get >/dev/null || missing "there is none in PATH, and no apt-get to fetch Debian's"
    names=$(needed)
    if [ -z "$names" ] && [ "$(id -u)" = 0 ]; then
        apt-get update -qq
        names=$(needed)
    fi
    [ -n "$names" ] || missing "there is none in PATH, and apt does not know $package; as root: apt-get update"
    if [ "$(cat "$dir/stamp" 2>/dev/null)" != "$names" ]; then
        rm -rf "$root" "$dir/debs"
        mkdir -p "$root" "$dir/debs"
        # shellcheck disable=SC2086 # A list of names.
        download() { (cd "$dir/debs" && apt-get download $names >/dev/null 2>&1); }
        # The archive drops the packages of old lists.
        download || { [ "$(id -u)" = 0 ] && apt-get update -qq && names=$(needed) && download; } ||
            missing "Debian's archive does not answer, or its lists are old (as root: apt-get update)"
        for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$root"; done
        rm -rf "$dir/debs"
        echo "$names" >"$dir/stamp"
    fi
    program=$(find "$root/usr/lib" -type f -path "*/chromium/chromium" | head -n 1)
    [ -n "$program" ] || missing "$package has no program where one is expected"
    launcher "$program" "$(find "$root/usr/lib" "$root/lib" -type d 2>/dev/null | paste -sd :)"
}

installed || unpacked
fonts
if ! echo "$axe_sha256  $dir/axe.min.js" | sha256sum --check --status 2>/dev/null; then
    (cd "$dir" && PATH="$base/bin:$PATH" npm pack --silent "axe-core@$axe" >/dev/null)
    tar -xzf "$dir/axe-core-$axe.tgz" -C "$dir" --strip-components=1 package/axe.min.js
    rm -f "$dir/axe-core-$axe.tgz"
    echo "$axe_sha256  $dir/axe.min.js" | sha256sum --check --quiet
fi
