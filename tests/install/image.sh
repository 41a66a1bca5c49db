#!/usr/bin/env bash
# Starts the image of `make image` as a container runtime does: its command is the first process of a pid namespace, as
# the image's user. usage: image.sh DIRECTORY, with the image in DIRECTORY/packages
set -euo pipefail
dir=$(cd "${1:?usage: image.sh DIRECTORY}" && pwd)
image=("$dir"/packages/acp-host-*-image.oci.tar)
skip() {
    echo "not possible here: $*"
    [ -z "${CI:-}" ] || exit 1
    exit 0
}
fail() {
    echo "FAILED: $*" >&2
    sed 's/^/    | /' "$work/log" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || skip "the root file system belongs to root"
command -v jq >/dev/null || skip "jq is missing"
[ -f "${image[0]}" ] || skip "there is no image: make image"
work=$(mktemp -d)
outer=
cleanup() {
    if [ -n "$outer" ]; then kill -KILL "$outer" 2>/dev/null || true; fi
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
mkdir "$work/oci" "$work/tree"
: >"$work/log"

# The archive, as the specification describes it: index, manifest, configuration and layer, by their digests.
tar -xf "${image[0]}" -C "$work/oci"
(cd "$work/oci/blobs/sha256" && for blob in *; do echo "$blob  $blob"; done | sha256sum --quiet -c) || fail "digests"
blob() { echo "$work/oci/blobs/sha256/$(jq -r "$2" "$1" | cut -d: -f2)"; }
manifest=$(blob "$work/oci/index.json" '.manifests[0].digest')
config=$(blob "$manifest" .config.digest)
layer=$(blob "$manifest" '.layers[0].digest')
[ "sha256:$(gzip -dc "$layer" | sha256sum | cut -d' ' -f1)" = "$(jq -r '.rootfs.diff_ids[0]' "$config")" ] || fail "diff_ids"
mapfile -t command < <(jq -r '.config.Cmd[]' "$config")
mapfile -t environment < <(jq -r '.config.Env[]' "$config")
user=$(jq -r .config.User "$config")
tar -xzf "$layer" -C "$work/tree" --exclude='./dev/*'
echo "passed: the archive is consistent"

# Tools of others: skopeo loads the archive, umoci makes the bundle that a runtime starts.
if command -v skopeo >/dev/null && command -v umoci >/dev/null; then
    skopeo copy --quiet "oci-archive:${image[0]}" "oci:$work/copy:latest" >"$work/log" 2>&1 || fail "skopeo"
    umoci unpack --image "$work/copy:latest" "$work/bundle" >"$work/log" 2>&1 || fail "umoci"
    [ "$(jq -r '.process.args[]' "$work/bundle/config.json")" = "$(printf '%s\n' "${command[@]}")" ] || fail "another command"
    diff <(cd "$work/tree" && find . -path ./dev -prune -o -print | sort) \
        <(cd "$work/bundle/rootfs" && find . -path ./dev -prune -o -print | sort) >"$work/log" || fail "other files"
    rm -rf --one-file-system "$work/copy" "$work/bundle"
    echo "passed: skopeo and umoci make a bundle of it"
else
    echo "not possible here: skopeo or umoci is missing"
    [ -z "${CI:-}" ] || exit 1
fi

unshare --mount --pid --fork --kill-child --net --ipc --uts sh -ec '
    root=$1 user=$2; shift 2
    mount --make-rprivate / && mount --bind "$root" "$root" && mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/dev"
    for device in null:3 zero:5 urandom:9; do mknod -m 666 "$root/dev/${device%:*}" c 1 "${device#*:}"; done
    exec chroot --userspec="$user:$user" "$root" /usr/bin/env -i "$@"' \
    sh "$work/tree" "$user" "${environment[@]}" "${command[@]}" >"$work/log" 2>&1 &
outer=$!
until=$((SECONDS + 30))
socket=$work/tree/home/$user/.local/state/acp-host/gateway.sock
until grep -q 'acp-host is up' "$work/log"; do
    [ $SECONDS -lt $until ] && kill -0 "$outer" || fail "the image does not start"
    sleep 0.1
done
first=$(pgrep -P "$outer")
inside() {
    nsenter --target "$first" --mount --pid --net --ipc --root --wd -- chroot --userspec="$user:$user" / \
        /usr/bin/env -i "${environment[@]}" sh -ec "cd /home/$user && $1"
}
[ "$(inside 'cat /proc/1/comm')" = acp-gateway ] || fail "the first process is not acp-gateway"
# shellcheck disable=SC2016
inside 'KEY=$(acp-gateway sessions spawn --agent demo --permission approve-all) &&
    acp-gateway prompt "$KEY" "write hello.txt Hello from the demo agent"' >"$work/turn" 2>&1 || fail "turn: $(cat "$work/turn")"
grep -q 'Hello from the demo agent' "$work/tree/home/$user/hello.txt" || fail "no file: $(cat "$work/turn")"
echo "passed: acp-gateway up is the first process of its pid namespace, and a turn wrote a file"

# Root of the machine, in another pid namespace: docs/manual/security.md.
chroot "$work/tree" /usr/bin/acp-gateway --state-dir "/home/$user/.local/state/acp-host" sessions list >"$work/out" 2>&1 ||
    fail "root outside of the namespace was refused: $(cat "$work/out")"
chroot --userspec=nobody:nogroup "$work/tree" /usr/bin/acp-gateway --state-dir "/home/$user/.local/state/acp-host" \
    sessions list >"$work/out" 2>&1 && fail "another user outside of the namespace was served"
echo "passed: outside of the pid namespace root is served, and another user is not"

kill -TERM "$first"
until ! kill -0 "$outer" 2>/dev/null; do
    [ $SECONDS -lt $((until + 60)) ] || fail "SIGTERM does not end the image"
    sleep 0.1
done
code=0
wait "$outer" || code=$?
outer=
[ $code = 0 ] || fail "the image ended with status $code"
[ ! -S "$socket" ] || fail "the socket is left"
echo "passed: SIGTERM ends agents, supervisor and gateway"
