#!/bin/bash
# tests/plan_output.test.sh - what `heddle plan` writes for people and into files: the grid of ticks,
# labels, tables out and in, sweeps, and the public cases (tests/cases.md) that need a file.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
work="$HD_BUILD_DIR/tests/plan_output_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

# has NAME FRAGMENT: the last output holds it.
has() {
    grep -qF -- "$2" out || say "$1: no '$2' in: $(cat out)"
}

# plan CODE WORDS...: runs, keeps stdout and stderr in out, checks the exit code.
plan() {
    local code=$1
    shift
    "$heddle" plan "$@" >out 2>&1
    local got=$?
    [ $got -eq "$code" ] || say "heddle plan $*: exit $got, not $code: $(head -n 3 out)"
}

# The grid: four columns a tick, a backward's second tick, empty ticks, folded at COLUMNS.
COLUMNS=32 "$heddle" plan pipeline.ranks=2 pipeline.microbatches=2 --ticks |
    sed '/^schedule/,$d' >ticks
cat >wanted <<'GRID'
tick    0                   5   
rank 0  0F0 0F1  .   .  0B0  -- 
rank 1   .  1F0 1B0  -- 1F1 1B1 

tick    6           
rank 0   .  0B1  -- 
rank 1   --  .   .  
4B2 stage 4, backward, microbatch 2
-- goes on  . empty

GRID
diff wanted ticks || say "the grid differs"

# In colour the grid is the same, apart from the sequences, the legends, and blocks for dashes.
COLUMNS=32 "$heddle" plan pipeline.ranks=2 pipeline.microbatches=2 --ticks --color always >colored
grep -q "$(printf '\033\[48;5;25;38;5;231m0F0\033')" colored || say "no forward in blue"
sed 's/\x1b\[[0-9;]*m//g' colored | grep '^rank' | sed 's/ *$//' >blocks
grep '^rank' wanted | sed 's/--/  /g; s/ *$//' | diff - blocks || say "the grid in colour differs"
grep -q "forward, stages 0-1" colored || say "no legend of colours"

# The figure: every action is text, its width is the requested one, and a name is not markup.
plan 0 pipeline.schedule=interleaved_1f1b --timeline drawn --svg figure.svg --width 180
grep -q '<svg [^>]*width="180mm"' figure.svg || say "the figure is not 180 mm wide"
[ "$(grep -cE '<text [^>]*>[0-9]+[FB][0-9]+</text>' figure.svg)" -eq 128 ] || say "labels are missing in the figure"
grep -q "57 ticks, bubble 15.8 %" figure.svg || say "the figure has no title"
"$heddle" plan pipeline.ranks=2 pipeline.microbatches=2 --csv 'a<b>&.csv' >/dev/null
plan 0 pipeline.ranks=1 pipeline.microbatches=1 --svg one.svg
grep -q ': 1 rank, 1 stage, 1 microbatch, 3 ticks, ' one.svg || say "one of a kind in the figure's title"
plan 0 pipeline.ranks=2 pipeline.microbatches=1 cost.transfer=0.5 --timeline costed
grep -q 'transfers 1 tick, ' out || say "one tick is said as one"

plan 0 'pipeline.schedule=a<b>&.csv' --svg markup.svg
grep -q 'a&#60;b&#62;&#38;.csv' markup.svg || say "markup in the figure's title"

# A sweep as a table for other programs: one row for each combination, a refusal too.
plan 0 --sweep pipeline.schedule=1f1b:interleaved_1f1b --sweep pipeline.stages_per_rank=1:2 --csv sweep.csv
[ "$(wc -l <sweep.csv)" -eq 5 ] || say "the table of the sweep: $(cat sweep.csv)"
head -n 1 sweep.csv | grep -q '^pipeline.schedule,pipeline.stages_per_rank,ticks,' || say "its titles"
grep -q '^interleaved_1f1b,2,57,36,15.79%,18.75%,11,' sweep.csv || say "its numbers: $(cat sweep.csv)"
grep -q '^1f1b,2,-,-,.*refused' sweep.csv || say "its refusal: $(cat sweep.csv)"

# C92: the report draws 0F6 at tick 16; as soon as possible it runs at tick 10.  Same length.
words="pipeline.schedule=interleaved_1f1b --ticks --json"
for pair in asap:10 drawn:16; do
    plan 0 $words --timeline ${pair%:*}
    has C92 "{\"rank\": 0, \"tick\": ${pair#*:}, \"kind\": \"F\", \"stage\": 0, \"microbatch\": 6}"
    has C92 '"ticks": 57'
done

# C89: both bubbles, labelled, and symbolic.
plan 0
has C89 "bubble      27.27% of the total, 37.50% over ideal (symbolic, not measured)"

# C14: which pairs of ranks meet; in the loop the last meets the first, in the v it does not.
pairs() { # of unordered pairs, sorted
    grep -oE '"source": [0-9]+, "target": [0-9]+' out | sed 's/[^0-9 ]//g' |
        awk '{ print $1 < $2 ? $1 "-" $2 : $2 "-" $1 }' | sort -u | tr '\n' ' '
}
plan 0 pipeline.schedule=interleaved_1f1b --json
[ "$(pairs)" = "0-1 0-3 1-2 2-3 " ] || say "C14, loop: $(pairs)"
plan 0 pipeline.schedule=1f1b_v --json
[ "$(pairs)" = "0-1 1-2 2-3 3-3 " ] || say "C14, v: $(pairs)"

# C43: copies grow with m, then stay; the plan says from where.
plan 0 --sweep pipeline.microbatches=1:2:3:4:8:64
awk 'NR > 1 { printf "%s ", $6 }' out | grep -q '^1 2 3 4 4 4 $' || say "C43: $(cat out)"
plan 0
has C43 "copies      4 3 2 1 by rank (more microbatches add none from m = 4 on)"
plan 0 pipeline.schedule=gpipe --sweep pipeline.microbatches=1:2:3:4:8:64
awk 'NR > 1 { printf "%s ", $6 }' out | grep -q '^1 2 3 4 8 64 $' || say "C43: $(cat out)"

# C10: every m from 1 to 12 is planned.
plan 0 pipeline.schedule=interleaved_1f1b \
    --sweep pipeline.microbatches=1:2:3:4:5:6:7:8:9:10:11:12
grep -q refused out && say "C10: $(cat out)"
[ "$(wc -l <out)" -eq 13 ] || say "C10: $(wc -l <out) lines"

# A sweep is a product, and a rejected combination has a row.
plan 0 --sweep pipeline.schedule=1f1b:interleaved_1f1b --sweep pipeline.stages_per_rank=1:2
[ "$(wc -l <out)" -eq 5 ] || say "sweep: $(cat out)"
[ "$(grep -c 'refused: 1f1b holds one stage per rank' out)" -eq 1 ] || say "sweep: $(cat out)"

# C05: with one microbatch gpipe and 1f1b are one table.
plan 0 pipeline.schedule=gpipe pipeline.microbatches=1 --csv gpipe.csv
plan 0 pipeline.schedule=1f1b pipeline.microbatches=1 --csv 1f1b.csv
cmp gpipe.csv 1f1b.csv || say "C05: the tables differ"
printf '0F0,0B0\r\n1F0,1B0\r\n2F0,2B0\r\n3F0,3B0\r\n' | cmp - 1f1b.csv || say "C05: no such table"
ls | grep -q part && say "a half table is left behind"

# A plan survives its table, drawn ticks included.
plan 0 pipeline.schedule=interleaved_1f1b --csv drawn.csv
plan 0 pipeline.schedule=drawn.csv --timeline drawn
has "drawn.csv" "drawn: 57 ticks; 228 of all ranks, 36 of them empty"
has "drawn.csv" "0 local, 59 hidden, 53 exposed"

# Shape comes from the table; keys that contradict it are refused.
plan 2 pipeline.schedule=1f1b.csv pipeline.ranks=3
has "contradiction" "command line: pipeline.ranks: 3, but 1f1b.csv has 4"
plan 2 pipeline.schedule=1f1b.csv pipeline.microbatches=2
plan 2 pipeline.schedule=1f1b.csv pipeline.stages_per_rank=2
plan 0 pipeline.schedule=1f1b.csv pipeline.ranks=4 pipeline.microbatches=1

# Communication and junk are refused by row and column.
printf '0F0,0SEND_F0,0B0\n1F0,1B0\n' >comms.csv
plan 2 pipeline.schedule=comms.csv
has "comms" 'comms.csv: row 1, column 2: "0SEND_F0" is communication'

# C17: the cell 0B3 is deleted.
printf '0F0,0F1,0B0,0F2,0B1,0F3,0B2\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n' >dropped.csv
plan 4 pipeline.schedule=dropped.csv
has C17 "0B3 is missing: stage 0 has 3 of 4 backwards"

# C11, fault A: a warmup of (P - 1 - rank) V forwards can never run.  Ranks 2 and 3 reach a backward
# before its own forward, and law 2 says so before law 4 looks for the cycle.
interleaved_row() { # RANK WARMUP: the rank's row of P=4 V=2 m=8 with that many forwards first
    local forwards=() backwards=() row="" group chunk microbatch step
    for group in 0 4; do
        for chunk in 0 4; do
            for microbatch in 0 1 2 3; do
                forwards+=("$((chunk + $1))F$((group + microbatch))")
                backwards+=("$((4 - chunk + $1))B$((group + microbatch))")
            done
        done
    done
    for ((step = 0; step < 16; step++)); do
        row+="${forwards[step]},"
        if ((step >= $2)); then
            row+="${backwards[step - $2]},"
        fi
    done
    for ((step = 16 - $2; step < 16; step++)); do
        row+="${backwards[step]},"
    done
    echo "${row%,}"
}
for rank in 0 1 2 3; do interleaved_row $rank $(((3 - rank) * 2)); done >fault_a.csv
plan 4 pipeline.schedule=fault_a.csv
has "C11 fault A" "6B0 (action 4) comes before 6F0 (action 7)"

# C11, fault B: a warmup of (P - 1 - rank) + (V - 1) P is interleaved_lean, and legal.
for rank in 0 1 2 3; do interleaved_row $rank $((3 - rank + 4)); done >fault_b.csv
plan 0 pipeline.schedule=fault_b.csv
has "C11 fault B" "asap: 57 ticks"
has "C11 fault B" "copies      8 7 6 5 by rank"
plan 0 pipeline.schedule=interleaved_lean --csv lean.csv
diff <(tr -d '\r' <lean.csv) fault_b.csv || say "C11 fault B is not interleaved_lean"

# Sums of fractions are printed in the shortest form.
plan 0 pipeline.ranks=2 pipeline.microbatches=3 cost.forward=.4 cost.transfer=.3 --timeline costed
has "fractions" "costed: 10.8 ticks; 21.6 of all ranks, 7.2 of them empty"
has "fractions" "transfers 1.8 ticks, 1.2 of them exposed; all ranks are equally busy"

# Without idle ticks the drawn timeline is the asap one.
plan 0 pipeline.schedule=1f1b --timeline drawn
has "drawn" "note        the plan draws no idle ticks: its drawn timeline is the asap"

# A good plan that run would reject has a note; a plan outside the oracle is marked.
peers="$HD_SOURCE_DIR/tests/golden/schedules/peers"
plan 0 pipeline.schedule="$peers/DualPipeV_P4_V2_m8.csv" kernels.name=reference
has "DualPipeV" "kernel reference has no split backward: run refuses this"
plan 0 pipeline.schedule="$peers/LoopedBFS_P2_V2_m4.csv"
has "LoopedBFS" "law 8 is broken"
plan 0 pipeline.schedule="$peers/ZBVZeroBubble_P4_V2_m8.csv"
has "ZBV" "asap: 51 ticks"
has "ZBV" "copies      8 8 8 8 by rank"

# One error line on stderr, nothing on stdout.
"$heddle" plan pipeline.stages_per_rank=2 >out 2>err
[ -s out ] && say "a refusal speaks on stdout"
[ "$(wc -l <err)" -eq 1 ] || say "a refusal is $(wc -l <err) lines"

[ $failed -eq 0 ] && echo "plans are written as they should be"
exit $failed
