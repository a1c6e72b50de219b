#!/usr/bin/env bash
# The transport cuda_ipc on a real GPU (docs/gpu.md): conformance with all ranks on one GPU, and on
# several where there are; every message of `heddle bench p2p`; whole runs.
# STANDIN=1 runs the same lines over the CUDA stand-in, which tests the script, not a GPU.
set -uo pipefail
# shellcheck source=tests/support/gpu.sh
. "$HD_SOURCE_DIR/tests/support/gpu.sh"
is_built transport_cuda_ipc || skip "CUDA's headers are not installed, so nothing of CUDA is built"
take_gpus 2
mib=$(is_standin && echo 4 || echo 64)
options="transport.cuda_ipc.cuda_runtime=$runtime kernel.synthetic.cuda_runtime=$runtime"

# Ranks take the GPUs in turn: with one visible all share it.
for visible in 0 "${CUDA_VISIBLE_DEVICES:-all}"; do
    if [ "$visible" = all ]; then
        unset CUDA_VISIBLE_DEVICES
    else
        export CUDA_VISIBLE_DEVICES=$visible
    fi
    [ "$visible" = 0 ] && STANDIN_CUDA="devices=1" || STANDIN_CUDA="devices=2"
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
