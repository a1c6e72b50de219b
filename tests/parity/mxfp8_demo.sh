#!/usr/bin/env bash
# tests/parity/mxfp8_demo.sh HEDDLE TEXT [SEED...] - is MXFP8's loss within 2 % of BF16's, at every step of the demo?
#
# Trains conf/demo.ini twice for each seed (1 if none is given), in bf16 and in mxfp8, and compares the losses
# step by step.  A pair takes three minutes on two idle cores, so it is no part of ./dev test:
#
#     ./dev demo
#     tests/parity/mxfp8_demo.sh ./heddle build/demo/kjv.txt 1 2 3
#
# Ends with 1 if a step of any seed differs by more.  What it printed is in docs/decisions/0005_mxfp8_emulated.md.
set -euo pipefail
heddle=$(realpath "$1")
text=$(realpath "$2")
shift 2
conf=$(realpath "$(dirname "$0")/../../conf/demo.ini")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failed=0

losses() { # DIRECTORY
    sed -E 's/.*"loss": ([-+.0-9e]+).*/\1/' "$1/metrics.jsonl"
}

for seed in "${@:-1}"; do
    for precision in bf16 mxfp8; do
        "$heddle" run "$conf" data.corpus="$text" kernels.precision=$precision train.seed="$seed" output.trace=off \
            output.checkpoint_every=never output.directory="$precision.$seed" --quiet >"$precision.log"
    done
    paste <(losses "bf16.$seed") <(losses "mxfp8.$seed") | awk -v seed="$seed" '
        { distance = $2 > $1 ? $2 / $1 - 1 : 1 - $2 / $1; sum += distance; last = $1 " and " $2 }
        distance > most { most = distance; at = NR }
        distance > 0.02 { above++ }
        END {
            printf "seed %s: %d steps, at most %.2f %% apart (step %d), %.2f %% on average, %d above 2 %%; last losses %s\n",
                seed, NR, most * 100, at, sum / NR * 100, above, last
            exit NR == 0 || above > 0
        }' || failed=1
done
exit $failed
