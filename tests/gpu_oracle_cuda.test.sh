#!/usr/bin/env bash
# The one oracle on kernels cuda: with the same microbatches, losses, norms and parameters are bitwise those of
# one rank, for every schedule, over every device transport, in bf16 and mxfp8, of experts and dense, recomputed.
# cuda_ipc takes any number of ranks on one GPU; nccl and nccl_rma need one for each (docs/gpu.md).
# STANDIN=1 runs a part of it over the stand-ins, with the kernels emulated: tests/oracle_cuda.test.sh.
set -uo pipefail
# shellcheck source=tests/support/gpu.sh
. "$HD_SOURCE_DIR/tests/support/gpu.sh"
need_kernel
take_gpus 2
if is_standin; then
    model="model.layers=4 model.width=32 model.heads=2 model.experts=2 model.experts_per_token=1 model.expert_width=32
        model.sequence=16 model.vocabulary=64 data.microbatch_size=1 pipeline.microbatches=4 train.steps=2"
else
    model="model.layers=8 model.width=256 model.heads=4 model.experts=8 model.expert_width=256 model.sequence=256
        data.microbatch_size=2 pipeline.microbatches=8 train.steps=5"
fi

run() { # DIRECTORY WORDS...
    local directory=$1
    shift
    # shellcheck disable=SC2086 # a list of words
    "$heddle" run kernels.name=cuda kernel.cuda.cuda_runtime="$runtime" kernel.cuda.cublaslt="$products" $model \
        output.trace=off output.directory="$directory" --quiet "$@" >out 2>err || say "$*: exit $?: $(head -n 3 err)"
}

field() { # DIRECTORY KEY
    grep -oE "\"$2\": (\"[0-9a-f]*\"|\[[^]]*\])" "$1/run.json"
}

same() { # DIRECTORY WORDS...: as the run `one` of one rank
    local directory=$1 key
    shift
    run "$directory" "$@"
    for key in losses grad_norms parameters_hash; do
        [ -n "$(field one $key)" ] && [ "$(field "$directory" $key)" = "$(field one $key)" ] ||
            say "$*: $key is $(field "$directory" $key), of one rank $(field one $key)"
    done
}

over() { # TRANSPORT: its words
    echo "transport.name=$1 transport.$1.cuda_runtime=$runtime"
    [ "$1" = cuda_ipc ] || echo "transport.$1.library=$library"
}

run one pipeline.ranks=1 pipeline.schedule=1f1b
if [ "${STANDIN:-}" = 1 ]; then
    # shellcheck disable=SC2046
    {
        same ipc pipeline.ranks=2 pipeline.schedule=interleaved_1f1b $(over cuda_ipc)
        same two_sided pipeline.ranks=2 pipeline.schedule=1f1b_v $(over nccl)
        same one_sided pipeline.ranks=2 pipeline.schedule=gpipe kernels.recompute=full $(over nccl_rma)
    }
    exit $failed
fi
# shellcheck disable=SC2086 # a list of words
for words in bf16 mxfp8 "mxfp8 model.experts=0"; do
    name=${words// /.}
    rm -rf one
    run one pipeline.ranks=1 pipeline.schedule=1f1b kernels.precision=$words
    for transport in cuda_ipc nccl nccl_rma; do
        ranks=4
        [ $transport = cuda_ipc ] || ranks=$((gpus < 4 ? gpus : 4))
        [ "$ranks" -ge 2 ] || { echo "$transport: left out: it wants a GPU for each rank"; continue; }
        for schedule in gpipe 1f1b interleaved_1f1b interleaved_lean 1f1b_v; do
            # shellcheck disable=SC2046
            same $name.$transport.$schedule kernels.precision=$words pipeline.ranks=$ranks \
                pipeline.schedule=$schedule $(over $transport)
        done
    done
    # shellcheck disable=SC2046
    same $name.recompute kernels.precision=$words kernels.recompute=full pipeline.ranks=4 $(over cuda_ipc)
done
exit $failed
