#!/usr/bin/env bash
# The readers of ini, csv, npy and safetensors files under libFuzzer, for a bounded number of inputs:
# from the stored corpus, with one seed.  A finding leaves its input in the build tree.
set -uo pipefail
work=$HD_BUILD_DIR/tests/fuzz
mkdir -p "$work"
if ! command -v clang >/dev/null; then
    echo "skipped: clang is not installed (apt-get install clang)"
    exit 77
fi
printf 'int LLVMFuzzerTestOneInput(const char *bytes, long count);\n
int LLVMFuzzerTestOneInput(const char *bytes, long count) { return (void)bytes, (void)count, 0; }\n' >"$work/probe.c"
if ! clang -fsanitize=fuzzer,address,undefined -o "$work/probe" "$work/probe.c" 2>"$work/probe.log"; then
    echo "skipped: clang has no fuzzer runtime (apt-get install libclang-rt-dev)"
    exit 77
fi

if ! cmake -S "$HD_SOURCE_DIR/tests/fuzz" -B "$work/build" -G Ninja -D CMAKE_C_COMPILER=clang \
    >"$work/build.log" 2>&1 || ! cmake --build "$work/build" >>"$work/build.log" 2>&1; then
    tail -n 30 "$work/build.log"
    exit 1
fi

failed=0
fuzz() { # TARGET INPUTS
    local target=$1
    rm -rf "$work/$target"
    mkdir -p "$work/$target"
    if ! "$work/build/fuzz_$target" "$work/$target" "$HD_SOURCE_DIR/tests/fuzz/corpus/$target" \
        -runs="$2" -seed=1 -max_len=4096 -timeout=30 -artifact_prefix="$work/found_${target}_" \
        >"$work/$target.log" 2>&1; then
        echo "FAILED: fuzz_$target:"
        tail -n 40 "$work/$target.log"
        failed=1
    fi
    grep -hE '^#[0-9]+.*DONE' "$work/$target.log" | sed "s/^/$target: /"
}
fuzz npy 20000
fuzz safetensors 20000
fuzz ini 2000
fuzz csv 5000
exit $failed
