#!/usr/bin/env bash
# Runs what this machine's kernel and control groups may not allow in a machine that does: Debian's own kernel, with
# control groups of version 2 and every controller in them. It installs qemu where that is missing and may be;
# everything else stays in TARGET_DIR/vm. Nothing of it outlives this script.
#
# usage: run.sh TARGET_DIR
# ACP_VM_FILTER: only tests whose name matches this expression (default: those of limits; `.` runs all, which takes
# more than an hour where KVM does not work). ACP_VM_SECONDS: how long the machine may run.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
target=${1:?usage: run.sh TARGET_DIR}
mkdir -p "$target/vm"
target=$(cd "$target" && pwd)
dir=$target/vm
seconds=${ACP_VM_SECONDS:-3600}

fail() {
    echo "run.sh: $*" >&2
    exit 1
}

. "$here/machine.sh"
"$here/image.sh" "$dir"

# What the machine gets beside its root: programs and sources, at the very paths that the tests were built with.
stage=$dir/stage
rm -rf "$stage"
mkdir -p "$stage/places$repository" "$stage/places$target/debug/deps" "$stage/places$target/tmp"
cp -a "$repository"/{supervisor,wrapper,packaging,shared,tests} "$stage/places$repository/"
put() {
    strip --strip-debug -o "$stage/places$1" "$1"
}
for program in acp-supervisor acp-wrapper acp-gateway; do
    put "$target/debug/$program"
done
# One JSON line per binary of tests: its package's manifest, its target's name, and where it lies. With acp-tests, so that
# the packages have the features of the whole workspace and are not built again.
cargo test --locked --no-run -q -p acp-supervisor -p acp-wrapper -p acp-testkit -p acp-tests --lib --test real --message-format=json |
    sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"name":"\(real\|acp_testkit\)".*"executable":"\([^"]*\)".*/\2 \1 \3/p' |
    while read -r name package binary; do
        put "$binary"
        echo "$(basename "$package")/$name $package $binary"
    done >"$stage/binaries"
[ "$(wc -l <"$stage/binaries")" = 3 ] || fail "the binaries of tests are not those that were expected: $(cat "$stage/binaries")"
cp "$here"/*.sh "$stage/"
cat >"$stage/plan" <<END
PLACES="$repository $target"
JOBS=2
TEST_SECONDS=300
FILTER='${ACP_VM_FILTER:-^limits::}'
LEAVE_OUT='${ACP_VM_LEAVE_OUT:-heavy_soak}'
REPOSITORY="$repository"
TARGET="$target"
END
rm -f "$dir/programs.ext4"
PATH=$PATH:/usr/sbin:/sbin mke2fs -q -F -t ext4 -E root_owner=0:0 -d "$stage" "$dir/programs.ext4" 3G
rm -rf "$stage"

status=0 log=$dir/suite.log start=$SECONDS
boot /acp/suite.sh "$log"
tr -d '\r' <"$log" | grep -aE '^(acp-vm:|    \|)' || true
passed=$(grep -ac '^acp-vm: passed' "$log" || true)
failed=$(grep -ac '^acp-vm: FAILED' "$log" || true)
cannot=$(grep -ac '^acp-vm: not possible' "$log" || true)
echo "=== test-vm ($accel): $passed passed, $failed failed, $cannot not possible, $((SECONDS - start)) s; all of it: $log"
if ! grep -aq '^acp-vm: the end' "$log"; then
    echo "=== test-vm: the machine did not come to its end"
    tail -n 40 "$log"
    status=1
fi
if [ "$failed" != 0 ] || [ "$passed" = 0 ]; then status=1; fi
exit $status
