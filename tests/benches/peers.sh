#!/bin/sh
# Downloads the peers of the wrapper's benchmark from Debian's archive into DIRECTORY/usr/bin, and with FOREIGN, the
# directory of installed agents, goose from npm (300 MB). Installs nothing and needs no root. Reports missing packages;
# the benchmark then searches PATH for those of the wrapper, and leaves goose out.
set -eu
directory=${1:?"usage: peers.sh DIRECTORY [FOREIGN]"}
foreign=${2:-}
mkdir -p "$directory"
cd "$directory"
for package in tini dumb-init catatonit; do
    [ -x "usr/bin/$package" ] && continue
    if apt-get download "$package" >/dev/null 2>&1 && dpkg -x "$package"_*.deb .; then
        echo "$package: fetched"
    else
        echo "$package: not available from Debian's archive"
    fi
    rm -f "$package"_*.deb
done

package=@aaif/goose-binary-linux-x64
version=1.52.0
hash=sha512-2aPCG0HuLUI1cafcez1s1nLlTsNMx7AHWnmAOS/6S9xqmcvY+oXsQA5SUHin1Sf5uphK6pcOCLmgygJ6YQIDaQ==
[ -f "$foreign/stamp" ] && [ ! -x usr/bin/goose ] || exit 0
mkdir -p goose usr/bin
echo '{"private": true}' >goose/package.json
# npm checks the archive against the hash that the registry told; here that hash is checked against ours.
if (cd goose && npm install --ignore-scripts --no-save --no-package-lock --no-audit --no-fund --loglevel=error \
    "$package@$version") && grep -qF "\"integrity\": \"$hash\"" goose/node_modules/.package-lock.json; then
    ln -sf "../../goose/node_modules/$package/bin/goose" usr/bin/goose
    echo "goose $version: fetched"
else
    echo "goose $version: not available from npm"
fi
