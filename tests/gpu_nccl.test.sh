#!/usr/bin/env bash
# The transports nccl and nccl_rma on real GPUs, one for each rank (docs/gpu.md): conformance, whole
# runs of every schedule.
# STANDIN=1 runs the same lines over the stand-ins, which judges the script and no GPU.
set -uo pipefail
heddle=$HD_BUILD_DIR/bin/heddle
[ -e "$HD_PLUGIN_DIR/heddle_transport_nccl.so" ] || {
    echo "skipped: the headers of CUDA or of NCCL are not installed, so the plugins are not built"
    exit 77
}
runtime=libcudart.so.13 library=libnccl.so.2 mib=64
if [ "${STANDIN:-}" = 1 ]; then
    runtime=$HD_BUILD_DIR/tests/standin/libheddle_standin_cuda.so
    library=$HD_BUILD_DIR/tests/standin/libheddle_standin_nccl.so mib=1
    export STANDIN_CUDA="devices=4"
    gpus=4
elif ! gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || [ "$gpus" -eq 0 ]; then
    echo "skipped: there is no NVIDIA driver on this machine, or no GPU (nvidia-smi)"
    exit 77
elif [ "$gpus" -lt 2 ]; then
    echo "skipped: NCCL wants a GPU for each rank, and there is one"
    exit 77
fi
export CUDA_DEVICE_MAX_CONNECTIONS=32
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
cd "$world" || exit 1
ranks=$((gpus < 4 ? gpus : 4))
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

for name in nccl nccl_rma; do
    options="transport.name=$name transport.$name.cuda_runtime=$runtime transport.$name.library=$library
        kernels.name=synthetic kernel.synthetic.memory=cuda kernel.synthetic.cuda_runtime=$runtime"
    # shellcheck disable=SC2086 # a list of words
    "$heddle" conform $name $options --bytes-max ${mib}M >out 2>err
    code=$?
    if [ $code -eq 1 ] && grep -q 'version: ' out; then
        echo "$name: left out: $(grep -o 'version: .*' out | head -n 1)"
        continue
    fi
    [ $code -eq 0 ] || say "conform $name: $(cat err) $(grep '^  fail' out)"
    tail -n 1 out
    for schedule in gpipe 1f1b interleaved_1f1b interleaved_lean 1f1b_v; do
        # shellcheck disable=SC2086
        "$heddle" run $options pipeline.schedule=$schedule pipeline.ranks=$ranks train.steps=3 cost.tick_us=200 \
            transport.timeout_s=20 output.directory=run output.checkpoint_every=never --overwrite --quiet >out 2>err ||
            say "$name, $schedule on $ranks GPUs: $(head -n 3 err)"
    done
done
exit $failed
