# Functions of run.sh and services.sh: a machine of qemu, which ends with the script. They use $dir (disks of image.sh),
# $seconds (how long a machine may run) and `fail`. root_disk and acp_disk override the two disks.
machine=
accel=tcg
# ACP_VM_ACCEL=tcg: without KVM from the start.
if [ "${ACP_VM_ACCEL:-kvm}" = kvm ] && [ -w /dev/kvm ]; then accel=kvm; fi

cleanup() {
    # TERM to `timeout`, which passes it on.
    if [ -n "$machine" ] && kill -0 "$machine" 2>/dev/null; then
        kill -TERM "$machine"
    fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if ! command -v qemu-system-x86_64 >/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
        fail "qemu-system-x86_64 is missing, and it takes root to install it: apt-get install qemu-system-x86"
    echo "qemu is missing: installing it with apt-get"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive timeout 900 apt-get install -y -qq --no-install-recommends qemu-system-x86 >/dev/null
fi
# Boots a machine whose first process is $1; what it says goes into $2. Sets `machine`.
launch() {
    : >"$2"
    timeout -k 5 "$seconds" qemu-system-x86_64 -machine "q35,accel=$accel" -cpu max,-arch-capabilities -smp 2 -m 3072 \
        -nodefaults -no-reboot -display none -serial "file:$2" -kernel "$dir/vmlinuz" -initrd "$dir/initramfs.gz" \
        -append "console=ttyS0 quiet loglevel=3 panic=-1 acp.init=$1" \
        -drive "file=${root_disk:-$dir/root.ext4},format=raw,if=none,id=root,snapshot=on,cache=unsafe" -device virtio-blk-pci,drive=root \
        -drive "file=${acp_disk:-$dir/programs.ext4},format=raw,if=none,id=acp,snapshot=on,cache=unsafe" -device virtio-blk-pci,drive=acp \
        -device virtio-rng-pci </dev/null &
    machine=$!
}

# Whether the machine says its first word within so many seconds.
speaks() {
    local until=$((SECONDS + $2))
    until grep -aq '^acp-vm: up' "$1"; do
        kill -0 "$machine" 2>/dev/null && [ $SECONDS -lt $until ] || return 1
        sleep 0.2
    done
}

# KVM is told by a machine that runs: where it is nested it may be there and not get a kernel started.
boot() {
    local code=0
    launch "$1" "$2"
    if [ "$accel" = kvm ] && ! speaks "$2" 30; then
        echo "run.sh: /dev/kvm is there, and no machine starts with it within 30 s; going on without it, slowly"
        cleanup
        wait "$machine" || true
        accel=tcg
        launch "$1" "$2"
    fi
    wait "$machine" || code=$?
    machine=
    [ $code = 0 ] || echo "run.sh: the machine ended with status $code (124: it took more than $seconds s)"
}
