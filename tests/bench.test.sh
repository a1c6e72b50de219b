#!/usr/bin/env bash
# tests/bench.test.sh - `heddle bench` on very short jobs: words, rows,
# fields, relations between the numbers; never a speed.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
json="$HD_BUILD_DIR/tests/json_check"
work="$HD_BUILD_DIR/tests/bench_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

# bench CODE WORDS...: runs, keeps stdout in out and stderr in err, checks the exit code.
bench() {
    local code=$1
    shift
    "$heddle" bench "$@" >out 2>err
    local got=$?
    [ $got -eq "$code" ] || say "heddle bench $*: exit $got, not $code: $(head -n 2 err)"
}

has() { # NAME FILE FRAGMENT
    grep -qF -- "$3" "$2" || say "$1: no '$3' in: $(head -c 600 "$2")"
}

# number KEY [WHICH]: the value of a scalar member, in order of appearance.
number() {
    grep -oE "\"$1\": (null|-?[0-9][-+.0-9e]*)" out | sed -n "${2:-1}p" | sed 's/.*: //'
}

# spread KEY COUNT: everywhere median, min and p90 are of COUNT samples, above nothing and in order.
spread() {
    grep -oE "\"$1\": \{[^}]*\}" out | tr -d '"{},:' | awk -v count="$2" '
        $5 <= 0 || $5 > $3 || $3 > $7 || $9 != count { is_bad = 1 }
        END { exit NR == 0 || is_bad }' ||
        say "spread $1 of $2: $(grep -oE "\"$1\": \{[^}]*\}" out)"
}

# holds NAME EXPRESSION: true by awk.
holds() {
    awk "BEGIN { exit !($2) }" || say "$1: $2"
}

# --- words ---------------------------------------------------------------------------------------
bench 2
has "no word" err "bench needs one of: plan, step, p2p, skew"
bench 2 speed
has "an unknown word" err "bench needs one of: plan, step, p2p, skew; not speed"
bench 2 plan step
has "two words" err "bench does not take the argument step"
bench 2 step --part optimizer
has "an unknown part" err "--part must be model, products, engine, schedule, quantiser, overlap or recording, not optimizer"
bench 2 plan --part engine
has "parts of plan" err "--part is an option of bench step only"
bench 2 p2p --part engine
has "parts of p2p" err "--part is an option of bench step only"
bench 2 step bench.iterations=1000000
has "too many repetitions" err "bench step repeats at most 10000 times"
SLURM_STEP_NUM_TASKS=2 bench 2 step --part engine
has "under a launcher" err "SLURM_STEP_NUM_TASKS"

# --- plan ----------------------------------------------------------------------------------------
small="pipeline.ranks=4 pipeline.microbatches=8 bench.iterations=3"
bench 0 plan $small
has "both schedules" out "interleaved_1f1b"
has "both schedules" out "1f1b_v"
has "the yardstick is named" out "pass: the yardstick"
bench 0 plan $small --json
"$json" out || say "plan --json is not one object"
has "the bench" out '"command": "bench", "bench": "plan"'
has "two stages a rank are the usual" out '"schedule": "1f1b_v", "ranks": 4, "stages": 8, "microbatches": 8, "actions": 128'
for key in seconds pipeline_seconds hash_seconds program_seconds peak_bytes yardstick_seconds; do
    spread $key 3
done
holds "the ratio is of the medians" "$(number ratio) > 0"
holds "ns an action" "$(number nanoseconds_per_action) > 0"

bench 0 plan $small pipeline.schedule=gpipe pipeline.stages_per_rank=1 --json
[ "$(grep -o '"schedule"' out | wc -l)" -eq 1 ] || say "a schedule that is named is the only one"
has "gpipe" out '"schedule": "gpipe", "ranks": 4, "stages": 4, "microbatches": 8, "actions": 64'
printf '0F0,0F1,,,0B0,,0B1\n,1F0,1F1,1B0,,1B1\n' >two.csv
bench 0 plan pipeline.schedule=two.csv bench.iterations=1 --json
has "a table" out '"schedule": "two.csv", "ranks": 2, "stages": 2, "microbatches": 2, "actions": 8'
bench 4 plan $small pipeline.schedule=1f1b_v pipeline.stages_per_rank=3 --json
"$json" out || say "a refused plan is not one object"
has "a refused plan" out '"error": {"code": 4'

# --- step, engine --------------------------------------------------------------------------------
bench 0 step --part engine pipeline.ranks=2 pipeline.microbatches=4 bench.iterations=2 --json
"$json" out || say "engine --json is not one object"
# 2 ranks x 4 microbatches x F and B x 20 steps
has "null" out '"transport": "null", "ranks": 2, "actions": 320'
has "shm" out '"transport": "shm", "ranks": 2, "actions": 320'
spread action_us 2
holds "a call costs something" "$(number call_ns) > 0 && $(number clock_pair_ns) > 0"
for part in model schedule; do
    grep -q "\"$part\"" out && say "--part engine measured $part too"
done
bench 0 step --part engine pipeline.ranks=1 transport.name=shm bench.iterations=1 pipeline.microbatches=2
has "text" out "transport"
has "the yardstick is named" out "a pair of clock readings and an empty call"

# --- step, schedule ------------------------------------------------------------------------------
bench 0 step --part schedule pipeline.ranks=2 pipeline.microbatches=4 cost.tick_us=1000 \
    bench.iterations=2 bench.warmup=1 --json
"$json" out || say "schedule --json is not one object"
has "its shape" out '"schedule": "interleaved_1f1b", "ranks": 2, "stages": 4, "microbatches": 4, "shortest_ms": 1'
spread span_seconds 2
# 3 V m + 3 (P - 1) = 27 ticks of a millisecond; passes never last less than they cost, and wait
# for each other, so no step is shorter than its plan.
holds "the costed plan" "$(number plan_seconds) > 0.02699 && $(number plan_seconds) < 0.02701"
holds "no step is shorter than its plan" "$(number ratio) >= 1"

# --- step, model ---------------------------------------------------------------------------------
tiny="kernels.name=reference pipeline.ranks=1 pipeline.microbatches=2 data.microbatch_size=1
    model.layers=1 model.width=32 model.heads=2 model.experts=2 model.experts_per_token=1
    model.expert_width=32 model.sequence=16 bench.iterations=1 bench.warmup=1"
bench 0 step --part model $tiny --json
"$json" out || say "model --json is not one object"
has "one rank" out '"ranks": 1, "device"'
spread step_seconds 1
holds "the rate is operations over the median step" \
    "$(number gflops) * $(number median) / $(number gflop_per_step) > 0.999 &&
     $(number gflops) * $(number median) / $(number gflop_per_step) < 1.001"
if [ -x "$HD_BUILD_DIR/libexec/heddle/heddle-gemm-rate" ]; then
    has "products" out '"layout": "packed", "size": 2048'
    holds "the fastest of all is no slower than the fastest big one" \
        "$(number ratio_best) > 0 && $(number ratio_best) <= $(number ratio_big)"
fi

# Without the yardstick's program there is a rate without a ratio, and the output says why.
mkdir -p alone/bin
cp "$heddle" alone/bin/
alone="alone/bin/heddle bench step --part model --plugin-dir $HD_PLUGIN_DIR $tiny"
$alone --json >out 2>err || say "without heddle-gemm-rate: $(cat err)"
has "no yardstick" out '"missing": "libexec/heddle/heddle-gemm-rate is missing'
has "no ratio" out '"ratio_big": null, "ratio_best": null'
$alone >out 2>err || say "without heddle-gemm-rate, in text: $(cat err)"
has "no yardstick, in text" out "no yardstick: libexec/heddle/heddle-gemm-rate is missing"

# --- step, quantiser -----------------------------------------------------------------------------
bench 0 step --part quantiser $tiny --json
"$json" out || say "quantiser --json is not one object"
has "one rank, emulated" out '"ranks": 1, "device": "plain C, one thread, MXFP8 emulated in BF16"'
spread bf16_step_seconds 1
spread mxfp8_step_seconds 1
holds "the step ratio is of the medians" "$(number step_ratio) > 0 &&
    $(number step_ratio) * $(number median 1) / $(number median 2) > 0.999 &&
    $(number step_ratio) * $(number median 1) / $(number median 2) < 1.001"
if [ -x "$HD_BUILD_DIR/libexec/heddle/heddle-quantiser-rate" ]; then
    for operation in copy rows columns back; do
        [ "$(grep -o "\"operation\": \"$operation\"" out | wc -l)" -eq 2 ] || say "$operation: not in two sizes"
    done
    # 2 bytes of BF16, 1 of an element, a 32nd of its scale; and the copy is its own yardstick.
    holds "GB/s of a copy" "$(number gbytes) / $(number gelements) == 4 && $(number ratio) == 1"
    holds "GB/s of the quantiser" "$(number gbytes 2) / $(number gelements 2) > 3.031 &&
        $(number gbytes 2) / $(number gelements 2) < 3.032 && $(number ratio 2) > 0"
fi
bench 0 step --part quantiser $tiny
has "the step" out "step, ranks 1, median and min: bf16"
printf '[train]\nsteps = 240\nwarmup_steps = 20\ndecay = cosine\n' >long.ini
# shellcheck disable=SC2086
bench 0 step long.ini --part quantiser $tiny
alone=${alone/--part model/--part quantiser}
$alone --json >out 2>err || say "without heddle-quantiser-rate: $(cat err)"
has "no rate" out '"missing": "libexec/heddle/heddle-quantiser-rate is missing'

# --- step, overlap and recording -----------------------------------------------------------------
bench 0 step --part overlap pipeline.ranks=2 pipeline.microbatches=4 cost.tick_us=1000 bench.iterations=2 bench.warmup=1 --json
"$json" out || say "overlap --json is not one object"
[ "$(grep -o '"schedule"' out | wc -l)" -eq 5 ] || say "overlap: not five schedules"
has "its shape" out '"schedule": "1f1b_v", "ranks": 2, "stages": 4, "microbatches": 4'
spread span_seconds 2
holds "every transfer is known" "$(number unknown) == 0 && $(number unknown 5) == 0"
for row in 1 2 3 4 5; do
    holds "a step is never shorter than its plan ($row)" "$(number ratio $row) >= 1"
    holds "shares ($row)" "$(number efficiency_measured $row) >= 0 && $(number efficiency_measured $row) <= 1 &&
        $(number efficiency_costed $row) >= 0 && $(number efficiency_costed $row) <= 1"
done
bench 0 step --part overlap pipeline.schedule=1f1b pipeline.ranks=2 pipeline.microbatches=4 cost.tick_us=500 \
    cost.transfer=2 bench.iterations=1 bench.warmup=1
has "in text" out "schedule  ranks  stages  microbatches  seconds"
bench 2 step --part overlap cost.transfer=0
has "nothing to hide" err "command line: cost.transfer"
bench 0 step --part recording model.layers=4 model.width=32 model.heads=2 model.experts=0 model.expert_width=32 model.sequence=16 \
    kernels.name=reference pipeline.microbatches=2 bench.iterations=1 bench.warmup=1 --json
"$json" out || say "recording --json is not one object"
has "the model" out '"kernel": "reference", "ranks": 2, "actions": 8'
has "the engine alone" out '"kernel": "synthetic", "ranks": 2'
spread with_seconds 8
spread without_seconds 8
holds "a ratio" "$(number ratio) > 0 && $(number ratio 2) > 0"

# --- p2p -----------------------------------------------------------------------------------------
# Without ucx_perftest: its output is not ours, and it is slow.
mkdir -p tools
for tool in head grep sed awk tr wc cat; do ln -sf "$(command -v $tool)" tools/$tool; done
full_path=$PATH
PATH=$work/tools
few="bench.iterations=12 transport.timeout_s=60"

tail_of() { # KEY COUNT: least, middle, 99th of 100 and worst are in order, above nothing, of COUNT samples
    grep -oE "\"$1\": \{[^}]*\}" out | tr -d '"{},:' | awk -v count="$2" '
        $3 <= 0 || $3 > $5 || $5 > $7 || $7 > $9 || $11 != count { is_bad = 1 }
        END { exit NR == 0 || is_bad }' || say "$1 of $2: $(grep -oE "\"$1\": \{[^}]*\}" out)"
}

bench 0 p2p transport.name=shm bench.sizes=1000 $few --json
"$json" out || say "p2p --json is not one object"
has "its shape" out '"direction": "one", "progress_thread": false, "rows": [{"bytes": 1000, "window": 16, "round_trips_a_round": 3, "messages_a_round": 3'
# Five rounds of three; before them a window. Bursts of 4, 4 of each rank, whole and bare; streams of 3
# between two meetings of 2; first 18 of each rank forth and back and 16 one way: 150 + 36 + 20.
has "every message is counted, and is right" out '"copied_bytes": 0, "messages": 226, "wrong": 0'
tail_of latency_us 15
tail_of bare_latency_us 15
spread gbytes 5
holds "the ratio is to the raw exchange's" \
    "$(number latency_ratio) * $(number p50 3) / $(number p50 1) > 0.999 && $(number latency_ratio) * $(number p50 3) / $(number p50 1) < 1.001"
has "in place nothing moves by itself" out '"bare_gbytes": null'
has "no ucx_perftest" out '"missing": "ucx_perftest is not installed (Debian: ucx-utils)"'

bench 0 p2p transport.name=shm bench.sizes=3:12 bench.window=1 bench.direction=both $few
has "text" out "latency: half a round trip"
has "both ways" out "bandwidth, both ways at once"
has "three sizes, doubling" out "   12  shm"
has "no ucx_perftest, in text" out "no ucx_perftest: ucx_perftest is not installed"

if [ -e "$HD_PLUGIN_DIR/heddle_transport_ucx_tag.so" ]; then
    bench 0 p2p transport.name=ucx_tag bench.against=ucx_put bench.sizes=16K $few --json
    "$json" out || say "p2p with two transports is not one object"
    [ "$(grep -o '"copied_bytes": 16384, "messages": 226, "wrong": 0' out | wc -l)" -eq 2 ] ||
        say "two transports: $(grep -oE '"copied_bytes": [^}]*' out)"
    holds "bytes move" "$(number bare_gbytes 1) > 0 && $(number bare_gbytes 2) > 0"
    bench 0 p2p bench.sizes=8 $few
    for name in shm ucx_tag ucx_put; do has "all of ours" out "    8  $name"; done
    bench 0 p2p transport.name=ucx_tag transport.progress_thread=on bench.sizes=8 $few --json
    has "a thread" out '"progress_thread": true'
fi

# A strict rendezvous, one at a time: it hangs where its posts have no common order (law 7).
serial="$HD_BUILD_DIR/tests/fault/heddle_transport_rendezvous.so"
for direction in one both; do
    bench 0 p2p transport.name="$serial" bench.sizes=1K bench.direction=$direction \
        bench.iterations=2 transport.timeout_s=60 --json
    has "in order, $direction" out '"transport": "rendezvous"'
    holds "all arrives, $direction" "$(number wrong) == 0"
done

hook="transport.name=hook_fault transport.inner=shm bench.sizes=100 bench.window=2 transport.timeout_s=60"
bench 1 p2p $hook bench.iterations=5 transport.hook_fault.fault=flip transport.hook_fault.channel=0 \
    transport.hook_fault.sequence=3 --json
"$json" out || say "p2p with a wrong message is not one object"
has "one bit of one message" out '"transport": "hook_fault(shm)"'
holds "is found" "$(number wrong) == 1"
has "is said" out '"message": "hook_fault: 1 of '
bench 5 p2p $hook transport.hook_fault.fault=kill_peer transport.hook_fault.sequence=9
has "a dead rank is the cause" err "died of SIGKILL"
bench 5 p2p ${hook/timeout_s=60/timeout_s=0.5} transport.hook_fault.fault=drop \
    transport.hook_fault.channel=1 transport.hook_fault.sequence=9
has "so is silence" err "did not answer by the deadline"

bench 2 p2p bench.sizes=8:4
has "no size" err "command line: bench.sizes: 8:4 ends below its first size: "
bench 2 p2p bench.sizes=8:64:y2
has "no factor" err "8:64:y2 must be FIRST:LAST:xFACTOR"
bench 2 p2p bench.sizes=8:1M:x4 bench.window=65536
has "more than fits" err "65536 messages of 524288 bytes exceed the 1073741824 bytes of a channel"
bench 2 p2p bench.iterations=1000001
has "too often" err "bench.iterations: bench p2p repeats at most 1000000 times"
bench 2 p2p transport.name=hook_fault
has "a hook of nothing" err "hook_fault is a hook and needs a transport to wrap: set transport.inner=NAME"
bench 3 p2p transport.name=null
has "null" err "null moves no bytes between ranks"
bench 3 p2p bench.against=nowhere
has "no such transport" err "command line: bench.against: there is no transport nowhere"
bench 2 p2p bench.against=ucx_tag transport.ucx_tag.element_bytes=100
has "a wrong option" err "command line: transport.ucx_tag.element_bytes: 100 is not in 128..64K"
RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29555 bench 2 p2p
has "four processes of a launcher" err "environment: this command needs 2 processes, got 4: start 2 processes"
bench 2 p2p transport.name=shm transport.progress_thread=on
has "no thread for shm" err "transport.progress_thread: transport shm needs no progress thread"
PATH=$full_path

# --- skew ----------------------------------------------------------------------------------------
tiny="cost.tick_us=400 bench.sizes=64K bench.iterations=1 transport.timeout_s=60"
bench 0 skew transport.name=shm $tiny --json --svg late.svg
"$json" out || say "skew --json is not one object"
has "its shape" out '"stage_ms": 0.4, "bytes": 65536, "iterations": 1, "posted_early": false'
has "shm needs no thread" out '"transport": "shm", "lane": "shm", "progress_thread": false, "beat_us": 0'
[ "$(grep -oE '"late_ms": [0-9.]+' out | tr '\n' ' ')" = \
    '"late_ms": 0 "late_ms": 0.1 "late_ms": 0.2 "late_ms": 0.4 "late_ms": 0.8 ' ] ||
    say "lateness: $(grep -oE '"late_ms": [0-9.]+' out)"
# The figure shows the points of the object, and is as wide as a page.
for ((point = 1; point <= 5; point++)); do
    # By awk, whose numbers are doubles: bash's are longer and round a tie differently.
    wanted=$(awk "BEGIN { printf \"compute %.3f ms, alone %.3f (%+.1f %%)\", $(number compute_ms $point), \
        $(number alone_ms $point), $(number stretch_percent $point) }")
    has "the figure's numbers" late.svg "$wanted"
    wanted=$(awk "BEGIN { printf \"waits: target %.3f ms, source %.3f ms\", $(number target_wait_ms $point), \
        $(number source_wait_ms $point) }")
    has "the figure's waits" late.svg "$wanted"
    holds "compute takes time, and what was stolen of it is part of it" \
        "$(number alone_ms $point) > 0 && $(number compute_ms $point) > 0 && $(number stolen_ms $point) <= $(number compute_ms $point)"
    holds "the stretch is of the two" "($(number stretch_percent $point) / 100 + 1) * $(number alone_ms $point) / $(number compute_ms $point) > 0.999 &&
        ($(number stretch_percent $point) / 100 + 1) * $(number alone_ms $point) / $(number compute_ms $point) < 1.001"
    holds "what is readable is so after the arrival" "$(number readable_ms $point) >= $(number arrival_ms $point)"
    # In place the slot belongs to the target from the arrival until it has read.
    holds "a slot in place is free when its reader is done" "$(number free_ms $point) >= $(number arrival_ms $point)"
    # What the figure draws of the message begins at 0 and ends when the slot is free.
    holds "no time is below nothing" "$(number source_wait_ms $point) >= 0 && $(number target_wait_ms $point) >= 0"
done
has "its width" late.svg '<svg xmlns="http://www.w3.org/2000/svg" width="170mm"'
[ "$(tail -n 1 late.svg)" = "</svg>" ] || say "the figure has no end"
[ "$(grep -c '<path d="M[0-9.]* [0-9.]*v6.3' late.svg)" -eq 5 ] || say "an arrival is missing in the figure"

if [ -e "$HD_PLUGIN_DIR/heddle_transport_ucx_tag.so" ]; then
    bench 0 skew transport.name=ucx_tag $tiny
    has "the engine's thread" out "1000 us"
    has "the quick one" out "100 us "
    has "whose receive" out "posts its receive when it arrives"
    bench 0 skew transport.name=ucx_tag bench.against=shm transport.progress_thread=on pipeline.overlap=on $tiny --json
    has "early" out '"posted_early": true'
    has "only what is asked" out '"progress_thread": true, "beat_us": 100'
    [ "$(grep -o '"transport": ' out | wc -l)" -eq 2 ] || say "two lines: $(grep -o '"transport": "[a-z_]*"' out)"
fi
bench 0 skew transport.name="$serial" $tiny --json
has "in order" out '"transport": "rendezvous"'
bench 1 skew transport.name=hook_fault transport.inner=shm transport.hook_fault.fault=flip \
    transport.hook_fault.channel=0 transport.hook_fault.sequence=1 $tiny
has "a wrong message ends it" err "messages arrived wrong"
bench 2 skew bench.sizes=8:64
has "one size" err "bench.sizes: bench skew measures one message size"
bench 2 skew bench.iterations=1001
has "too often" err "bench.iterations: bench skew repeats at most 1000 times"
bench 7 skew transport.name=shm $tiny --svg nowhere/late.svg
has "no place for the figure" err "nowhere/late.svg: cannot be written"
bench 2 skew --part engine
has "parts of skew" err "--part is an option of bench step only"
bench 2 plan --svg plan.svg
has "no figure of plan" err "--svg is an option of bench skew only"

# A bench writes no run directory.
[ -e runs ] && say "a bench left a run directory"
exit $failed
