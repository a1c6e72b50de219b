#!/usr/bin/env bash
# The transport cuda_ipc on a real GPU (docs/gpu.md): conformance with all ranks on one GPU, and on
# several where there are; every message of `heddle bench p2p`; whole runs.
# STANDIN=1 runs the same lines over the CUDA stand-in, which judges the script and no GPU.
set -uo pipefail
heddle=$HD_BUILD_DIR/bin/heddle
[ -e "$HD_PLUGIN_DIR/heddle_transport_cuda_ipc.so" ] || {
    echo "skipped: CUDA's headers are not installed, so nothing of CUDA is built"
    exit 77
}
runtime=libcudart.so.13 mib=64
if [ "${STANDIN:-}" = 1 ]; then
    runtime=$HD_BUILD_DIR/tests/standin/libheddle_standin_cuda.so mib=1
elif ! nvidia-smi --list-gpus 2>/dev/null | grep -q .; then
    echo "skipped: there is no NVIDIA driver on this machine, or no GPU (nvidia-smi)"
    exit 77
fi
export CUDA_DEVICE_MAX_CONNECTIONS=32
options="transport.cuda_ipc.cuda_runtime=$runtime kernel.synthetic.cuda_runtime=$runtime"
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
cd "$world" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

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
    # shellcheck disable=SC2086
    "$heddle" bench p2p $options transport.name=cuda_ipc bench.sizes=8:${mib}M:x64 bench.iterations=200 >out 2>err ||
        say "bench p2p on GPUs $visible: $(cat err)"
    cat out
    for schedule in 1f1b interleaved_1f1b 1f1b_v; do
        # shellcheck disable=SC2086
        "$heddle" run $options kernels.name=synthetic kernel.synthetic.memory=cuda \
            transport.name=cuda_ipc pipeline.schedule=$schedule train.steps=3 cost.tick_us=200 \
            transport.timeout_s=20 output.directory=run output.checkpoint_every=never --overwrite \
            --quiet >out 2>err || say "$schedule on GPUs $visible: $(head -n 3 err)"
    done
done
exit $failed
