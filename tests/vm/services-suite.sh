#!/bin/bash
# Runs in the machine of services.sh, as a service of systemd. Each step continues where the one before ended.
exec >/dev/ttyS0 2>&1 </dev/null
set -u
socket=/run/acp-supervisor/supervisor.sock
state=/var/lib/acp-gateway/alice
project=/home/alice/project
mkdir -p /srv/target && cp -r /acp/packages /acp/upgrade /srv/target/ && cd /srv || exit 1

fail() {
    echo "$*"
    exit 1
}
eventually() {
    local until=$((SECONDS + 120))
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || fail "not within 120 s: $*"
        sleep 0.2
    done
}
step() {
    local start=$EPOCHREALTIME code=0
    # Not in a condition, where -e has no effect.
    set +e
    (set -e; "$1") >/tmp/step 2>&1
    code=$?
    if [ $code = 0 ]; then
        echo "acp-vm: passed services::$1 ($(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }'))"
    else
        echo "acp-vm: FAILED services::$1"
        { tail -n 20 /tmp/step; journalctl --no-pager -n 20 -u "acp-*"; } | sed 's/^/    | /'
    fi
}
alice() { su alice -c "cd $project && export ACP_GATEWAY_STATE_DIR=$state && $1"; }
main_pid() { systemctl show --property=MainPID --value "$1"; }
agent_pid() { acp-supervisor --socket $socket --json leases list --state living | jq -e '.data[0].adapter_pid'; }
history_has() { alice "acp-gateway sessions history $KEY" | grep -q "$1"; }
# Starts a turn of N chunks and waits for the first one, so that what follows happens in the middle of it.
start_turn() {
    alice "acp-gateway prompt $KEY 'stream $1 pace 100'" >/tmp/turn 2>&1 &
    eventually grep -q 'chunk 2' /tmp/turn
}

package_starts_the_supervisor() {
    sh -e /acp/install.sh
    acp-supervisor service check
    [ "$(systemctl is-enabled acp-supervisor)" = enabled ]
}
tenant_works_as_the_page_says() {
    useradd --create-home --shell /bin/bash alice
    su alice -c "mkdir $project"
    sh -e /acp/tenant.sh
    acp-gateway service check alice
    alice 'acp-gateway sessions spawn --agent demo --permission approve-all' >/srv/key
    KEY=$(cat /srv/key)
    alice "acp-gateway prompt $KEY 'write hello.txt Hello'"
    grep -q Hello $project/hello.txt
    [ "$(stat -c %U $project/hello.txt)" = alice ]
}
gateway_restart_in_a_turn_keeps_the_agent() {
    local agent gateway
    start_turn 100
    agent=$(agent_pid) gateway=$(main_pid acp-gateway@alice)
    systemctl restart acp-gateway@alice
    [ "$(main_pid acp-gateway@alice)" != "$gateway" ]
    eventually history_has 'chunk 100'
    [ "$(agent_pid)" = "$agent" ]
    [ "$(alice "acp-gateway sessions history $KEY" | grep -c 'chunk 50')" = 1 ]
}
upgrade_in_a_turn_keeps_agents_and_the_supervisors_process() {
    local agent gateway supervisor
    start_turn 300
    agent=$(agent_pid) gateway=$(main_pid acp-gateway@alice) supervisor=$(main_pid acp-supervisor)
    apt-get install -y ./target/upgrade/acp-host_*.deb
    dpkg-query -W -f '${Version}\n' acp-host | grep '+1$'
    [ "$(main_pid acp-supervisor)" = "$supervisor" ] && [ "$(main_pid acp-gateway@alice)" != "$gateway" ]
    acp-supervisor --socket $socket --json status | jq -e '.data.last_upgrade.error == null and .data.last_upgrade.leases == 1'
    [ "$(readlink "/proc/$supervisor/exe")" = /usr/bin/acp-supervisor ]
    eventually history_has 'chunk 300'
    [ "$(agent_pid)" = "$agent" ]
}
supervisor_restart_in_a_turn_keeps_the_session() {
    local supervisor
    start_turn 300
    supervisor=$(main_pid acp-supervisor)
    systemctl restart acp-supervisor
    [ "$(main_pid acp-supervisor)" != "$supervisor" ]
    eventually alice "acp-gateway prompt $KEY 'still here'"
}
one_user_needs_no_root() {
    useradd --create-home --shell /bin/bash bob
    loginctl enable-linger bob
    eventually test -S "/run/user/$(id -u bob)/systemd/private"
    cp -r /srv/target /home/bob/ && chown -R bob: /home/bob/target
    mkdir /home/bob/.local && chown bob: /home/bob/.local
    cat >/home/bob/all.sh <<'END'
set -e
cd ~
export XDG_RUNTIME_DIR=/run/user/$(id -u)
. /acp/user.sh
KEY=$(acp-gateway sessions spawn --agent demo --permission approve-all)
acp-gateway prompt "$KEY" 'write hello.txt Hello'
agent() { acp-supervisor --json leases list --state living | jq -e '.data[0].adapter_pid'; }
before=$(agent)
acp-supervisor service install --user
acp-gateway service install --user
[ "$(agent)" = "$before" ]
acp-gateway service check --user && acp-supervisor service check --user
acp-gateway service remove --user && acp-supervisor service remove --user
[ -s ~/.local/state/acp-host/gateway.db ]
END
    su - bob -c 'sh -e ~/all.sh'
    grep -q Hello /home/bob/hello.txt
    ! pgrep -u bob acp-
}
purge_stops_everything_and_keeps_state() {
    sh -e /acp/purge.sh >/tmp/purge 2>&1
    grep -q 'kept in /var/lib/acp-gateway;' /tmp/purge && grep -q 'kept in /var/lib/acp-supervisor;' /tmp/purge
    [ -s $state/gateway.db ]
    ! pgrep acp-
    [ ! -e /etc/systemd/system/multi-user.target.wants/acp-gateway@alice.service ]
}

KEY=
echo "acp-vm: kernel $(uname -r), $(systemctl --version | head -n 1)"
step package_starts_the_supervisor
step tenant_works_as_the_page_says
KEY=$(cat /srv/key)
step gateway_restart_in_a_turn_keeps_the_agent
step upgrade_in_a_turn_keeps_agents_and_the_supervisors_process
step supervisor_restart_in_a_turn_keeps_the_session
step one_user_needs_no_root
step purge_stops_everything_and_keeps_state
echo "acp-vm: the end"
systemctl poweroff --force --force
