#!/usr/bin/env bash
# `heddle bench` on a real GPU against the floors of docs/gpu.md: puts of cuda_ipc reach 80 % of a copy
# within the device, a stage's forward and backward 45 % of the BF16 ceiling, its products 90 % of cuBLASLt.
# STANDIN=1 runs the same lines over the stand-ins, small; it tests the script, not a speed.
set -uo pipefail
# shellcheck source=tests/support/gpu.sh
. "$HD_SOURCE_DIR/tests/support/gpu.sh"
is_built transport_cuda_ipc || skip "CUDA's headers are not installed, so nothing of CUDA is built"
take_gpus 2
if is_standin; then
    message=256K few="bench.iterations=10"
    block="model.width=32 model.heads=2 model.experts=2 model.experts_per_token=1 model.expert_width=32 model.sequence=8
        model.vocabulary=64 data.microbatch_size=1 bench.iterations=1 bench.sizes=64K cost.tick_us=1000"
    step="$block model.layers=1 pipeline.microbatches=2 pipeline.ranks=1"
else
    message=64M few=""
    block="model.width=2048 model.heads=16 model.experts=32 model.experts_per_token=4 model.expert_width=1024
        model.sequence=2048 model.vocabulary=50304 data.microbatch_size=2 bench.sizes=16M"
    step=$HD_SOURCE_DIR/conf/h200_1gpu.ini
fi

bench() { # WORDS...: the tables are shown; what is judged comes of the same run's object
    # shellcheck disable=SC2086 # a list of words
    "$heddle" bench $few "$@" kernel.synthetic.cuda_runtime="$runtime" --json >out 2>err || say "bench $*: exit $?: $(cat err)"
}

# floor NAME KEY PERCENT [WHICH]: a ratio of `out` is at least that; not checked over a stand-in.
floor() {
    local ratio
    ratio=$(grep -oE "\"$2\": (null|[0-9][-+.0-9e]*)" out | sed -n "${4:-1}p" | sed 's/.*: //')
    echo "$1: $(awk "BEGIN { print 100 * \"$ratio\" }") %, at least $3 wanted"
    [ -n "$ratio" ] && [ "$ratio" != null ] || say "$1: no number"
    grep -q 'a stand-in, no GPU' out && return
    awk "BEGIN { exit !(100 * \"$ratio\" >= $3) }" || say "$1: below $3 %"
}

over() { # TRANSPORT: its words
    echo "transport.name=$1 transport.$1.cuda_runtime=$runtime"
    [ "$1" = cuda_ipc ] || echo "transport.$1.library=$library"
}

# The kernel that lends the device and is measured; without nvcc the synthetic one, which is not measured.
kernel="kernels.name=cuda kernel.cuda.cuda_runtime=$runtime kernel.cuda.cublaslt=$products"
is_built kernel_cuda || kernel="kernels.name=synthetic"

# Ranks take the GPUs in turn: with one visible both share it, and a put is a copy within it.
# shellcheck disable=SC2046,SC2086
{
    CUDA_VISIBLE_DEVICES=0 bench p2p $(over cuda_ipc) $kernel bench.sizes=$message
    floor "puts of cuda_ipc over a copy" gbytes_ratio 80
    if [ "$gpus" -ge 2 ] && is_built transport_nccl; then
        for name in cuda_ipc nccl nccl_rma; do
            bench p2p $(over $name) $kernel bench.sizes=64:$message:x64
            echo "$name between two GPUs: $(cat out)"
        done
    fi
}

# Figure 27: what a late peer costs the other's compute, two-sided and one-sided.  Printed, not checked.
is_built kernel_cuda || { echo "the kernel cuda is not built: nvcc is not installed"; exit $failed; }
names=cuda_ipc
[ "$gpus" -ge 2 ] && is_built transport_nccl && names="cuda_ipc nccl nccl_rma"
# shellcheck disable=SC2046,SC2086
for name in $names; do
    "$heddle" bench skew $(over $name) $kernel $block transport.progress_thread=off --svg $name.svg >out 2>err ||
        say "bench skew of $name: exit $?: $(cat err)"
    cat out
done

# The shape of conf/h200_1gpu.ini wants 71 GB.
if [ "${STANDIN:-}" != 1 ] && [ "$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)" -lt 80000 ]; then
    echo "the GPU has less than 80000 MiB: conf/h200_1gpu.ini does not fit"
    exit $failed
fi
# shellcheck disable=SC2086
{
    bench step $step $kernel --part model
    floor "passes of h200-1gpu over the BF16 ceiling" pass_mfu 45
    bench step $step $kernel --part products
    count=$(grep -o '"ratio": [0-9]' out | wc -l)
    [ "$count" -ge 12 ] || say "products: only $count of them"
    for ((which = 1; which <= count; which++)); do
        # A square product has no ratio, and comes after all others.
        floor "$(grep -oE '"product": "[^"]*", "form": "[^"]*"' out | sed -n "${which}p") over cuBLASLt" ratio 90 $which
    done
}
exit $failed
