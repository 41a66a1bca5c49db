#!/bin/bash
# Runs in the fresh root: see run.sh.
set -euo pipefail
cd /srv
export DEBIAN_FRONTEND=noninteractive
# Maximum time from the start of the installation to the first answer, in seconds, with an agent present.
first_answer_max=60
fail() {
    echo "FAILED: $*" >&2
    exit 1
}
# Waits until a command succeeds, at most 30 s.
eventually() {
    local until=$((SECONDS + 30))
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || fail "not within 30 s: $*"
        sleep 0.1
    done
}
start=$EPOCHREALTIME
useradd --create-home --shell /bin/bash alice
sh -e install.sh
[ -n "$(getent group acp-admin)" ] || fail "no group acp-admin"
[ -d /var/lib/acp-gateway ] || fail "no directory of tmpfiles.d"
man_page=/usr/share/man/man1/acp-gateway-service-install.1.gz
# dpkg of a minimal Debian may leave out manuals.
[ -e "$man_page" ] || dpkg -L acp-host | grep -q "$man_page" || fail "no man pages"
acp-supervisor service check >/tmp/out 2>&1 && fail "a service without systemd"
grep -q "systemd does not run here" /tmp/out || fail "wrong error: $(cat /tmp/out)"
echo "passed: package installed"

sh -e up.sh >/tmp/up.log 2>&1 &
eventually test -S /var/lib/acp-gateway/alice/gateway.sock
cp turn.sh /home/alice/turn.sh
su alice -c 'mkdir ~/project && cd ~/project && sh -e ~/turn.sh' >/tmp/turn.log 2>&1 || fail "turn: $(cat /tmp/turn.log)"
grep -q 'Hello from the demo agent' /home/alice/project/hello.txt || fail "no file: $(cat /tmp/turn.log)"
[ "$(stat -c %U /home/alice/project/hello.txt)" = alice ] || fail "the file belongs to another user"
took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
echo "figure: $took s from the start of the installation to the file of the first answer, at most $first_answer_max s"
[ "${took%.*}" -lt $first_answer_max ] || fail "the first answer took $took s"
echo "passed: a turn of the demo agent wrote a file"

su alice -c 'acp-gateway --state-dir /var/lib/acp-gateway/alice doctor' >/tmp/out || fail "doctor: $(cat /tmp/out)"
grep -q '/usr/lib/acp-host/acp-wrapper' /tmp/out || fail "doctor does not find the wrapper: $(cat /tmp/out)"

# One user without root: the tarball runs from any directory.
mkdir -p /home/alice/.local && tar -xzf target/packages/acp-host-*-linux.tar.gz -C /home/alice/.local --strip-components=1
(cd /home/alice/.local && sha256sum --quiet -c SHA256SUMS) || fail "checksums of the tarball"
(cd target/packages && sha256sum --quiet -c SHA256SUMS) || fail "checksum beside the tarball"
su alice -c '~/.local/bin/acp-gateway --state-dir ~/other doctor' >/tmp/out 2>&1 || true
grep -q '/home/alice/.local/lib/acp-host/acp-wrapper' /tmp/out || fail "tarball: $(cat /tmp/out)"
echo "passed: tarball checked and unpacked"

# The first process of the foreground command.
pkill -INT -u alice -x acp-gateway || fail "no gateway"
wait || true
pgrep -u alice && fail "processes are left"
echo "# mine" >>/etc/acp-host/supervisor.toml
apt-get install -y --reinstall ./target/packages/acp-host_*.deb >/tmp/out 2>&1 || fail "reinstall: $(cat /tmp/out)"
grep -q '# mine' /etc/acp-host/supervisor.toml || fail "the configuration was replaced"
sh -e purge.sh >/tmp/out 2>&1 || fail "purge: $(cat /tmp/out)"
grep -q 'kept in /var/lib/acp-gateway;' /tmp/out || fail "purge does not say where the state is: $(cat /tmp/out)"
[ -s /var/lib/acp-gateway/alice/gateway.db ] || fail "purge deleted sessions"
for path in /usr/bin/acp-gateway /usr/lib/acp-host /etc/acp-host /usr/share/doc/acp-host; do
    [ ! -e "$path" ] || fail "$path is left after purge"
done
echo "passed: purge kept the state and said where"
