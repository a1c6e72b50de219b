#!/usr/bin/env bash
# The transports nccl and nccl_rma on real GPUs, one for each rank (docs/gpu.md): conformance, whole
# runs of every schedule.
# STANDIN=1 runs the same lines over the stand-ins, which tests the script, not a GPU.
set -uo pipefail
# shellcheck source=tests/support/gpu.sh
. "$HD_SOURCE_DIR/tests/support/gpu.sh"
is_built transport_nccl || skip "the headers of CUDA or of NCCL are not installed, so the plugins are not built"
take_gpus 4
[ "$gpus" -ge 2 ] || skip "NCCL wants a GPU for each rank, and there is one"
ranks=$((gpus < 4 ? gpus : 4))
mib=$(is_standin && echo 1 || echo 64)

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
