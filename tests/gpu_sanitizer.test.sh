#!/usr/bin/env bash
# The kernels of the plugin cuda under compute-sanitizer, on a real GPU: small ops (tests/test_gpu_ops.c) and one
# step of a small model (test_gpu_stages.c), by each of its four tools.  Any finding fails (docs/gpu.md).
# SANITIZER names the tool if it is not on the path.  STANDIN=1 runs the same lines over the stand-ins with
# any SANITIZER; it tests the script, not a kernel.
set -uo pipefail
# shellcheck source=tests/support/gpu.sh
. "$HD_SOURCE_DIR/tests/support/gpu.sh"
need_kernel
take_gpus 1
tool=${SANITIZER:-}
for place in compute-sanitizer "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" \
    "${CUDA_HOME:-/usr/local/cuda}/compute-sanitizer/compute-sanitizer"; do
    [ -n "$tool" ] || tool=$(command -v "$place")
done
[ -n "$tool" ] || skip "compute-sanitizer is not installed (the toolkit's package cuda-sanitizer)"

# An exit code that no program here uses, to tell a finding from a failed comparison.
for check in memcheck racecheck initcheck synccheck; do
    for words in "test_gpu_ops small" "test_gpu_stages step"; do
        # shellcheck disable=SC2086 # a program and its argument
        "$tool" --tool $check --error-exitcode 99 "$HD_BUILD_DIR/tests/"$words >"$world/out" 2>&1
        code=$?
        if [ $code -ne 0 ]; then
            echo "FAILED: $check, $words: exit $code ($([ $code -eq 99 ] && echo "a finding" || echo "the program"))"
            grep -E '^=========' "$world/out" | head -n 40
            [ $code -eq 99 ] || tail -n 20 "$world/out"
            failed=1
        else
            echo "$check, $words: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$world/out" | tail -n 1)"
        fi
    done
done
exit $failed
