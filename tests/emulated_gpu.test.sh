#!/usr/bin/env bash
# The checks that a GPU machine runs (ctest -L gpu), over the stand-ins, so that a run there tests the
# machine and not the checks.  The others run over stand-ins in oracle_cuda, cuda_ipc, nccl and bench_device.
set -uo pipefail
[ -e "$HD_PLUGIN_DIR/heddle_kernel_cuda.so" ] || { echo "the kernel cuda is not built: nvcc is not installed"; exit 77; }
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
cd "$world" || exit 1
export STANDIN=1
failed=0
say() {
    echo "$*"
    failed=1
}

"$HD_BUILD_DIR/tests/test_gpu_ops" >out 2>&1 || say "test_gpu_ops: exit $?: $(tail -n 30 out)"

"$HD_SOURCE_DIR/tests/gpu_conform_cuda.test.sh" >out 2>&1 || say "gpu_conform_cuda: exit $?: $(cat out)"

# A stub of the sanitizer: it records its arguments, runs the program under memcheck, and reports what it is told.
cat >sanitizer <<'TOOL'
#!/bin/bash
[ "$1" = --tool ] && [ "$3" = --error-exitcode ] || exit 2
echo "$2 ${5##*/} $6" >>"${0%/*}/asked"
[ "$2" = "${FINDS:-}" ] && { echo "========= Invalid __global__ read of size 2 bytes"; exit "$4"; }
[ "$2" = memcheck ] || exit 0
exec "${@:5}"
TOOL
chmod +x sanitizer
SANITIZER=$world/sanitizer "$HD_SOURCE_DIR/tests/gpu_sanitizer.test.sh" >out 2>&1 || say "gpu_sanitizer: exit $?: $(cat out)"
[ "$(sort asked | tr '\n' ';')" = "initcheck test_gpu_ops small;initcheck test_gpu_stages step;memcheck test_gpu_ops \
small;memcheck test_gpu_stages step;racecheck test_gpu_ops small;racecheck test_gpu_stages step;synccheck test_gpu_ops \
small;synccheck test_gpu_stages step;" ] || say "gpu_sanitizer asks for: $(cat asked)"
FINDS=racecheck SANITIZER=$world/sanitizer "$HD_SOURCE_DIR/tests/gpu_sanitizer.test.sh" >out 2>&1
[ $? -eq 1 ] || say "gpu_sanitizer passes over a finding"
grep -q '^FAILED: racecheck, test_gpu_ops small: exit 99 (a finding)' out || say "gpu_sanitizer: '$(cat out)'"
exit $failed
