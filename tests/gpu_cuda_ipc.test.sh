#!/usr/bin/env bash
# The transport cuda_ipc on a real GPU (docs/gpu.md): conformance with all ranks on one GPU, and on
# several where there are; whole runs; and what its puts bring beside a copy within the device.
# STANDIN=1 runs the same lines over the CUDA stand-in, which judges the script and no GPU.
set -uo pipefail
heddle=$HD_BUILD_DIR/bin/heddle
rate=$HD_BUILD_DIR/tests/cuda_ipc_rate
if [ ! -x "$rate" ]; then
    echo "skipped: CUDA's headers are not installed, so nothing of CUDA is built"
    exit 77
fi
runtime=libcudart.so.13 mib=64 floor=80
if [ "${STANDIN:-}" = 1 ]; then
    runtime=$HD_BUILD_DIR/tests/standin/libheddle_standin_cuda.so mib=1 floor=0
fi
options="transport.cuda_ipc.cuda_runtime=$runtime kernel.synthetic.cuda_runtime=$runtime"
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
cd "$world" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

"$rate" "$runtime" $mib $floor >rate.txt 2>&1
code=$?
cat rate.txt
[ $code -eq 77 ] && exit 77
[ $code -eq 0 ] || say "puts bring less than $floor % of a copy, or fail"

# Ranks take the GPUs in turn: with one visible all share it.
for visible in 0 "${CUDA_VISIBLE_DEVICES:-all}"; do
    if [ "$visible" = all ]; then
        unset CUDA_VISIBLE_DEVICES
    else
        export CUDA_VISIBLE_DEVICES=$visible
    fi
    # shellcheck disable=SC2086
    "$heddle" conform cuda_ipc $options --bytes-max ${mib}M >out 2>err ||
        say "conform on GPUs $visible: $(cat err) $(grep '^  fail' out)"
    tail -n 1 out
    for schedule in 1f1b interleaved_1f1b 1f1b_v; do
        # shellcheck disable=SC2086
        "$heddle" run $options kernels.name=synthetic kernel.synthetic.memory=cuda \
            transport.name=cuda_ipc pipeline.schedule=$schedule train.steps=3 cost.tick_us=200 \
            transport.timeout_s=20 output.directory=run output.checkpoint_every=never --overwrite \
            --quiet >out 2>err || say "$schedule on GPUs $visible: $(head -n 3 err)"
    done
done
exit $failed
