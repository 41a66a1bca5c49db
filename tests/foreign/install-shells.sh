#!/usr/bin/env bash
# Unpacks Debian's zsh and fish into DIRECTORY/shells for `make test-foreign`; the programs are in shells/bin. Installs nothing
# and needs no root, except to fetch the lists of packages if there are none. usage: install-shells.sh DIRECTORY
set -euo pipefail
directory=${1:?"usage: install-shells.sh DIRECTORY"}/shells
[ ! -x "$directory/bin/fish" ] || exit 0
rm -rf "$directory"
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
cd "$directory"
fetch() { apt-get download zsh zsh-common fish fish-common libpcre2-32-0 >/dev/null 2>&1; }
if ! fetch; then
    [ "$(id -u)" != 0 ] || apt-get update -qq
    if ! fetch; then
        echo "install-shells.sh: cannot fetch zsh and fish from Debian's archive; as root: apt-get update" >&2
        exit 1
    fi
fi
for package in ./*.deb; do
    dpkg -x "$package" tree
done
rm -f ./*.deb
# fish takes its files from beside its program if it finds both directories there.
ln -sfn ../etc tree/usr/etc
modules=$(dirname "$(find "$directory/tree" -name zle.so | head -n 1)")
mkdir programs
cat > programs/zsh <<END
#!/bin/sh
# zsh takes the place of its modules and functions from no variable: the test's .zshenv reads this file.
ZSH_PLACES="$directory/places.zsh" exec "$directory/tree/bin/zsh" "\$@"
END
cat > places.zsh <<END
module_path=("$(dirname "$modules")")
fpath=("\${fpath[@]}" "$directory"/tree/usr/share/zsh/functions/**/*(/))
setopt zle
END
cat > programs/fish <<END
#!/bin/sh
LD_LIBRARY_PATH="$(dirname "$(find "$directory/tree" -name 'libpcre2-32.so.0')")" exec "$directory/tree/usr/bin/fish" "\$@"
END
chmod +x programs/zsh programs/fish
# Last, as the mark of a complete directory.
mv programs bin
