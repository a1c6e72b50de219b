#!/bin/bash
# tests/report.test.sh - heddle report: pages again, side by side, of a run that was killed; and its
# errors.  test_web checks what a page shows.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
work="$HD_BUILD_DIR/tests/report_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

# report CODE WORDS...: runs, keeps stdout and stderr in out, checks the exit code.
report() {
    local code=$1
    shift
    "$heddle" report "$@" >out 2>&1
    local got=$?
    [ $got -eq "$code" ] || say "heddle report $*: exit $got, not $code: $(head -n 3 out)"
}

# items PAGE COUNT: the page holds COUNT plans and runs, each on its own line.
items() {
    local count
    count=$(grep -cE '^\{"name": ' "$1")
    [ "$count" -eq "$2" ] || say "$1 holds $count items, not $2"
}

"$heddle" plan pipeline.schedule=1f1b --html one.html >/dev/null || say "no page of a plan"
"$heddle" plan pipeline.schedule=gpipe --html two.html >/dev/null || say "no page of a plan"
"$heddle" run kernels.name=synthetic cost.tick_us=50 pipeline.ranks=2 train.steps=4 train.warmup_steps=0 \
    output.directory=run --quiet >out 2>&1 || say "the run failed: $(cat out)"
items one.html 1
items run/report.html 1
grep -q '"trace": {"first": 2, "steps": \[\[\[' run/report.html || say "the run's page has no steps"

# A page requests nothing: its only address is the name of SVG.
grep -oE "(https?:)?//[a-z][^\"' ]*" run/report.html | grep -v '^http://www.w3.org/2000/svg' && say "an address in the page"

# Side by side, in the order of the words; a page of several gives all of its items.
report 0 one.html run -o both.html
items both.html 2
report 0 both.html two.html --json -o three.html
items three.html 3
grep -q '"page": "three.html", "items": 3}' out || say "the JSON of report: $(cat out)"
cmp -s <(grep -E '^\{"name": ' one.html) <(grep -E '^\{"name": ' three.html | head -n 1 | sed 's/,$//') ||
    say "an item changes on its way from page to page"

# Of one directory: the page in that directory, with the same content.
cp run/report.html before.html
report 0 run
cmp -s before.html run/report.html || say "the page of a run changes when it is made again"

# A run that was killed: no page, no end in run.json, a line of metrics that was cut short.
mkdir killed
cp run/config.ini run/run.json killed
head -c 700 run/metrics.jsonl >killed/metrics.jsonl
report 0 killed
items killed/report.html 1
grep -q '"trace": null' killed/report.html || say "a killed run has no steps"
grep -q '"loss": \[[^]]' killed/report.html || say "its losses are lost"
# A run without its page: the steps are missing, and the output says so.
cp run/trace.json killed
rm killed/report.html
report 0 killed
grep -q 'killed has lost its report.html' out || say "nothing is said of lost steps: $(cat out)"
rm killed/run.json killed/metrics.jsonl killed/report.html killed/trace.json
report 0 killed
items killed/report.html 1

# A directory that is not a run, and a file that is not a page.
report 2
grep -q "needs the directory of a run" out || say "no word: $(cat out)"
report 2 nowhere
grep -q "nowhere: " out || say "a place that is not there: $(cat out)"
mkdir empty
report 2 empty
grep -q "neither report.html nor config.ini" out || say "an empty directory: $(cat out)"
echo '<html></html>' >other.html
report 2 other.html
grep -q "is not a page of heddle" out || say "another's page: $(cat out)"
sed '/^\]<.script>/,$d' both.html >cut.html
report 2 cut.html
grep -q "cut short" out || say "half a page: $(cat out)"
sed 's/^{"name": "/&<script>/' one.html >forged.html
report 2 forged.html
grep -q "has data that heddle did not write" out || say "markup in the data: $(cat out)"
report 7 one.html two.html -o nowhere/page.html
report 2 one.html pipeline.ranks=4

[ $failed -eq 0 ] && echo "pages are made as they should be"
exit $failed
