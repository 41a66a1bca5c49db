#!/bin/sh
# Installs the programs and everything that belongs to them. This is the only list of installed files: `make install`,
# the Debian package, the tarball and the image use it.
#
# usage: install.sh PROGRAMS MAN COMPLETIONS: directories of the programs, of their man pages and of their completions
# DESTDIR: root of the files (default: none). PREFIX: /usr/local. SYSCONFDIR: /etc for /usr and /usr/local, else
# PREFIX/etc. ZSHDIR: directory of zsh's completions below PREFIX. STRIPPED=1: strip the programs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
programs=$1 man=$2 completions=$3
prefix=${PREFIX:-/usr/local}
case $prefix in
    /usr | /usr/local) sysconfdir=${SYSCONFDIR:-/etc} ;;
    /*) sysconfdir=${SYSCONFDIR:-$prefix/etc} ;;
    *) echo "install.sh: PREFIX must be an absolute path, not $prefix" >&2 && exit 2 ;;
esac
root=${DESTDIR:-}
to=$root$prefix
for program in acp-gateway acp-supervisor acp-wrapper acp-acpx-bridge; do
    if [ ! -x "$programs/$program" ]; then
        echo "install.sh: $programs/$program is missing; build it with \`make build\`" >&2
        exit 1
    fi
done

# The new file gets the name at once, so that a running program is not touched.
put() {
    install -d -m 755 "$(dirname "$3")"
    install -m "$1" "$2" "$3.new"
    [ "$1" != 755 ] || [ -z "${STRIPPED:-}" ] || strip --strip-all "$3.new"
    mv -f "$3.new" "$3"
}
# The paths of units and the like are those of an installation below /usr.
relocated() {
    install -d -m 755 "$(dirname "$2")"
    sed -e "s|/usr/bin/|$prefix/bin/|g" -e "s|/usr/share/|$prefix/share/|g" -e "s|/etc/acp-host|$sysconfdir/acp-host|g" \
        "$1" >"$2.new"
    chmod 644 "$2.new"
    mv -f "$2.new" "$2"
}

put 755 "$programs/acp-gateway" "$to/bin/acp-gateway"
put 755 "$programs/acp-supervisor" "$to/bin/acp-supervisor"
put 755 "$programs/acp-wrapper" "$to/lib/acp-host/acp-wrapper"
put 755 "$programs/acp-acpx-bridge" "$to/lib/acp-host/acp-acpx-bridge"
for unit in acp-supervisor.service acp-supervisor.socket acp-gateway@.service acp-gateway-backup@.service \
    acp-gateway-backup@.timer; do
    relocated "$here/systemd/$unit" "$to/lib/systemd/system/$unit"
done
for kind in sysusers.d tmpfiles.d; do
    relocated "$here/$kind/acp-host.conf" "$to/lib/$kind/acp-host.conf"
done
for page in "$man"/acp-*.1; do
    install -d -m 755 "$to/share/man/man1"
    gzip -9n <"$page" >"$to/share/man/man1/$(basename "$page").gz"
    chmod 644 "$to/share/man/man1/$(basename "$page").gz"
done
for program in acp-gateway acp-supervisor; do
    put 644 "$completions/$program.bash" "$to/share/bash-completion/completions/$program"
    put 644 "$completions/_$program" "$to/${ZSHDIR:-share/zsh/site-functions}/_$program"
    put 644 "$completions/$program.fish" "$to/share/fish/vendor_completions.d/$program.fish"
done
for page in "$here"/../docs/manual/*.*; do
    put 644 "$page" "$to/share/doc/acp-host/$(basename "$page")"
done
for picture in "$here"/../docs/manual/pictures/*; do
    put 644 "$picture" "$to/share/doc/acp-host/pictures/$(basename "$picture")"
done
put 644 "$here/debian/copyright" "$to/share/doc/acp-host/copyright"
for example in gateway supervisor; do
    put 644 "$here/$example.example.toml" "$to/share/doc/acp-host/examples/$example.toml"
done
put 644 "$here/prometheus/acp-host.rules.yml" "$to/share/doc/acp-host/examples/acp-host.rules.yml"
put 644 "$here/grafana/acp-host.json" "$to/share/doc/acp-host/examples/grafana-board.json"
# An existing configuration is kept.
if [ ! -e "$root$sysconfdir/acp-host/supervisor.toml" ]; then
    put 644 "$here/supervisor.example.toml" "$root$sysconfdir/acp-host/supervisor.toml"
fi
