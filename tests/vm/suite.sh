#!/bin/bash
# The first process of the test machine: mounts what a machine has, then runs each test of the packages that hold
# processes, one process per test, with control groups of version 2 and every controller in them. What it prints is
# read by run.sh. `suite.sh one BINARY NAME` runs one test.
set -u
. /acp/plan

if [ "${1:-}" = one ]; then
    name=$3 out=/run/suite/$BASHPID start=$EPOCHREALTIME
    (cd "$4" && exec timeout -k 5 "$TEST_SECONDS" "$2" --exact "$name" --nocapture --include-ignored) >"$out" 2>&1 </dev/null
    code=$?
    took=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')
    {
        if [ $code != 0 ]; then
            echo "acp-vm: FAILED $5::$name (status $code, $took)"
            sed 's/^/    | /' "$out" | tail -n 60
        elif grep -q '^not possible here' "$out"; then
            echo "acp-vm: not possible $5::$name: $(sed -n 's/^not possible here: //p' "$out" | head -n 1)"
        else
            echo "acp-vm: passed $5::$name ($took)"
            grep -E '^(probe|figure|seen):' "$out" | sed 's/^/    | /'
        fi
    } >"$out.said"
    cat "$out.said"
    rm -f "$out" "$out.said"
    exit 0
fi

export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 RUST_BACKTRACE=1 TMPDIR=/tmp
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 run /run
mkdir -p /dev/pts /dev/shm /run/suite
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
for fd in 0:stdin 1:stdout 2:stderr; do ln -sf "/proc/self/fd/${fd%%:*}" "/dev/${fd#*:}"; done
busybox ip link set lo up
exec </dev/null

# As a service manager leaves it: controllers for all below the top, and nothing that runs in the top itself.
mkdir /sys/fs/cgroup/init /sys/fs/cgroup/suite
echo $$ >/sys/fs/cgroup/init/cgroup.procs
for controller in memory pids cpu; do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done
for path in $PLACES; do
    mkdir -p "$path"
    mount --bind "/acp/places$path" "$path"
done
echo "acp-vm: kernel $(uname -r), controllers $(cat /sys/fs/cgroup/cgroup.subtree_control)"

(
    echo $BASHPID >/sys/fs/cgroup/suite/cgroup.procs
    while read -r label package binary; do
        "$binary" --list --format terse 2>/dev/null </dev/null | sed -n 's/: test$//p' |
            grep -E -- "$FILTER" | grep -vE -- "$LEAVE_OUT" |
            while read -r name; do printf '%s\0%s\0%s\0%s\0' "$binary" "$name" "$package" "$label"; done
    done </acp/binaries | xargs -0 -n 4 -P "$JOBS" /acp/suite.sh one
)
stray=$(grep -c . /sys/fs/cgroup/suite/cgroup.procs)
echo "acp-vm: processes left by all tests: $stray"
[ "$stray" = 0 ] || while read -r pid; do
    echo "    | $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline")"
done </sys/fs/cgroup/suite/cgroup.procs
echo "acp-vm: the end"
sync
busybox poweroff -f
