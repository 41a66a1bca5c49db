#!/usr/bin/env bash
# Fuzzes each target for a while (FUZZ_SECONDS, 60 by default) from its corpus and from the inputs that earlier runs added
# in TARGET_DIR/found. Failing inputs are left in TARGET_DIR/artifacts.
# With "planted" each target must instead find the panic that was planted in it, from its corpus alone.
#
# Usage: tests/fuzz/run.sh TARGET_DIR [planted]
set -euo pipefail
target_dir=$(mkdir -p "$1" && cd "$1" && pwd)
mode=${2:-search}
seconds=${FUZZ_SECONDS:-60}
cd "$(dirname "$0")"
command -v c++ >/dev/null || { echo "fuzzing needs a C++ compiler (Debian: g++)" >&2; exit 1; }

host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_PROFILE_DEV_DEBUG=0 RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Ccodegen-units=4 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
# Not --locked: the lock file follows the dependencies of the main workspace.
cargo build --bins --target "$host" --target-dir "$target_dir"

failed=()
for source in targets/*.rs; do
    name=$(basename "$source" .rs)
    found="$target_dir/found/$name" artifacts="$target_dir/artifacts/$name/"
    if [ "$mode" = planted ]; then
        found="$target_dir/planted/$name" artifacts="$target_dir/planted/artifacts/"
        rm -rf "$found" "$artifacts"
    fi
    mkdir -p "$found" "$artifacts"
    printf '\n=== %s: %s s, %s\n' "$name" "$seconds" "$mode"
    arguments=("-max_total_time=$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -use_value_profile=1 -dict=json.dict
        "-artifact_prefix=$artifacts" "$found" "corpus/$name")
    log="$target_dir/$name.log" code=0
    if [ "$mode" = planted ]; then
        FUZZ_PLANTED=1 "$target_dir/$host/debug/$name" "${arguments[@]}" >"$log" 2>&1 || code=$?
        if [ "$code" = 0 ] || ! grep -q 'panicked.*' "$log" || ! grep -q '^planted$' "$log"; then
            failed+=("$name: the planted panic was not found")
        fi
    else
        "$target_dir/$host/debug/$name" "${arguments[@]}" >"$log" 2>&1 || code=$?
        [ "$code" = 0 ] || failed+=("$name: see $log and $artifacts")
    fi
    grep -E '^(stat::number_of_executed_units|stat::new_units_added|stat::peak_rss_mb)|panicked' "$log" || true
done
if [ ${#failed[@]} -gt 0 ]; then
    printf 'fuzzing failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
