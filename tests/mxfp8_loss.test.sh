#!/usr/bin/env bash
# The effect of MXFP8 on a loss.  With equal parameters it differs from BF16 by a rounding; later the
# two precisions diverge, and the first steps of both are compared.
# The issue: "within 2 % of the BF16 loss at the same step"; docs/decisions/0005_mxfp8_emulated.md
# has the numbers of the whole demo.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
work="$HD_BUILD_DIR/tests/mxfp8_loss_work"
kernel=cpu
[ -e "$HD_PLUGIN_DIR/heddle_kernel_cpu.so" ] || kernel=reference
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0
model="kernels.name=$kernel model.layers=4 model.width=64 model.heads=2 model.experts=4
    model.expert_width=96 model.sequence=32 pipeline.microbatches=4 data.microbatch_size=2
    pipeline.ranks=1 train.warmup_steps=4 train.learning_rate=4e-3 output.trace=off --quiet"

run() { # DIRECTORY WORDS...
    local directory=$1
    shift
    # shellcheck disable=SC2086 # a list of words
    "$heddle" run $model output.directory="$directory" "$@" >out 2>err || {
        echo "FAILED: $*: $(head -n 2 err)"
        exit 1
    }
}

losses() { # DIRECTORY
    sed -E 's/.*"loss": ([-+.0-9e]+).*/\1/' "$1/metrics.jsonl"
}

# near NAME LIMIT: the pairs of numbers on stdin differ, but by no more than so much of the first.
near() {
    awk -v limit="$2" -v name="$1" '
        { distance = $2 > $1 ? $2 / $1 - 1 : 1 - $2 / $1 }
        distance > most { most = distance; at = NR }
        { is_other += $1 != $2 }
        END {
            printf "%s: at most %.4f %% apart, in row %d of %d\n", name, most * 100, at, NR
            exit NR == 0 || most > limit || is_other == 0
        }' || {
        echo "FAILED: $1: more than $2 apart, or no different at all"
        failed=1
    }
}

run bf16 train.steps=12 kernels.precision=bf16
run mxfp8 train.steps=12 kernels.precision=mxfp8 output.checkpoint_every=never
[ "$(losses bf16 | wc -l)" -eq 12 ] || failed=1
paste <(losses bf16) <(losses mxfp8) | near "12 steps, each in its own precision" 0.02

for precision in bf16 mxfp8; do
    # shellcheck disable=SC2086
    "$heddle" run --evaluate --resume bf16 $model kernels.precision=$precision --steps 4 --json >"$precision.json" 2>err ||
        { echo "FAILED: evaluating in $precision: $(head -n 2 err)"; failed=1; }
    grep -oE '"loss": [-+.0-9e]+' "$precision.json" | sed 's/.*: //' >"$precision.loss"
done
paste bf16.loss mxfp8.loss | near "equal parameters" 0.002
exit $failed
