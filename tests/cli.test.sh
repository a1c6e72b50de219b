#!/bin/sh
# tests/cli.test.sh - the command line as docs/interface.md says: words, exit codes, the one error
# line, the one JSON object.  Uses the plugins of the build and those of tests/fault.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
faults="$HD_BUILD_DIR/tests/fault"
json="$HD_BUILD_DIR/tests/json_check"
work="$HD_BUILD_DIR/tests/cli_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

# expect CODE FRAGMENT WORDS...: the exit code, one line on stderr with the fragment (none at code 0),
# and with --json added the same code, nothing on stderr and one object that holds it.
expect() {
    code=$1
    fragment=$2
    shift 2
    "$heddle" "$@" >out 2>err
    got=$?
    [ $got -eq "$code" ] || say "heddle $*: exit $got, not $code: $(head -n 1 err)"
    if [ "$code" -eq 0 ]; then
        [ -s err ] && say "heddle $*: speaks on stderr: $(head -n 1 err)"
        grep -qF -- "$fragment" out || say "heddle $*: stdout lacks '$fragment'"
    else
        [ "$(wc -l <err)" -eq 1 ] || say "heddle $*: $(wc -l <err) lines on stderr"
        grep -qF -- "$fragment" err || say "heddle $*: '$(cat err)' lacks '$fragment'"
    fi
}

expect_json() {
    code=$1
    begin=$2
    shift 2
    "$heddle" "$@" --json >out 2>err
    got=$?
    [ $got -eq "$code" ] || say "heddle $* --json: exit $got, not $code"
    [ -s err ] && say "heddle $* --json: speaks on stderr: $(head -n 1 err)"
    [ "$(wc -l <out)" -eq 1 ] || say "heddle $* --json: $(wc -l <out) lines"
    case "$(cat out)" in
    "$begin"*) ;;
    *) say "heddle $* --json: begins '$(head -c 120 out)'" ;;
    esac
    "$json" out || say "heddle $* --json: is not one JSON object"
}

# --- words and help ------------------------------------------------------------------------------
expect 0 "Commands:" --help
expect 0 "heddle config [FILE.ini]" config --help
expect 0 "heddle 0.1.0" --version
expect 2 "no command given"
expect 2 "the nearest one is config" confg
expect 2 "not the directory of a run" report .
expect 2 "the nearest one is --changed" config --chnaged
expect 2 "--plugin-dir needs a value: DIR" list --plugin-dir
expect 2 "--changed takes no value" config --changed=1
expect 2 "--color is auto, always or never" list --color=blue
expect 2 "does not take the argument extra" config extra
expect 2 "is not a kind of plugin" list schedules
expect 2 "only one configuration file" config a.ini b.ini
expect_json 0 '{"heddle": "0.1.0", "command": null' --version
expect_json 2 '{"heddle": "0.1.0", "command": "confg", "error": {"code": 2, "place": "command line"' \
    confg

# --- config --------------------------------------------------------------------------------------
synthetic="kernels.name=synthetic transport.name=null"
printf '[pipeline]\nranks = 2 ; two\n[kernels]\nname = synthetic\n[transport]\nname = null\n' >x.ini
expect 0 "ranks = 2 ; x.ini:2" config x.ini
expect 0 "ranks = 3 ; command line" config x.ini pipeline.ranks=3
expect 0 "beta1 = 0.9 ; default" config x.ini
expect 2 "command line: model.split: 3 numbers for 2 ranks x 1 stages" \
    config x.ini model.split=1,2,3 pipeline.stages_per_rank=1
expect 2 "command line: pipeline.rank: no such key: the nearest one is pipeline.ranks" \
    config pipeline.rank=4
expect 2 "nowhere.ini: No such file" config nowhere.ini
mkdir -p dir.ini
expect 2 "dir.ini: it is a directory" config dir.ini
expect 3 "transport.name: there is no transport nul" config kernels.name=synthetic transport.name=nul
expect 3 "command line: pipeline.schedule: /dev cannot be used: not a regular file: give the .so of" \
    config $synthetic pipeline.schedule=/dev
expect 3 "pipeline.schedule: ../x.so cannot be used: No such file or directory: give the .so of a schedule" \
    config $synthetic pipeline.schedule=../x.so
expect 2 "command line: pipeline.ranks: 99999999999999999999 is too large for a whole number: ranks takes" \
    config $synthetic pipeline.ranks=99999999999999999999
expect 2 "[schedule.foo]: there is no schedule foo" config x.ini schedule.foo.a=1
expect 2 "1f1b has no options" config x.ini schedule.1f1b.a=1
expect_json 0 '{"heddle": "0.1.0", "command": "config", "config": {"pipeline": {"schedule": ' config x.ini
expect_json 2 '{"heddle": "0.1.0", "command": "config", "error": {"code": 2' config pipeline.rank=4

# What it prints reads back to itself, with plugins' options, and --changed is enough to repeat it.
for changed in "" --changed; do
    # shellcheck disable=SC2086
    "$heddle" config $synthetic pipeline.schedule=1f1b_v pipeline.microbatches=12 \
        cost.forward=1,2,3,4,5,6,7,8 $changed >first.ini || say "config $changed"
    "$heddle" config first.ini $changed >second.ini || say "config first.ini $changed"
    sed 's/ ; [^;]*$//' first.ini >first.txt
    sed 's/ ; [^;]*$//' second.ini >second.txt
    cmp -s first.txt second.txt || say "config $changed is no fixpoint"
done
grep -q '^microbatches = 12' second.ini || say "config --changed lacks what changed"
grep -q 'beta1' second.ini && say "config --changed has defaults"

# The options of a plugin that is not chosen are checked and printed; of one that cannot be loaded,
# printed unchecked.
expect 2 "command line: kernel.reference.float64: zz is not a flag" \
    config $synthetic kernel.reference.float64=zz
expect 2 "schedule.1f1b_v.pull_ahed: no such option: the nearest one is pull_ahead" \
    config $synthetic pipeline.schedule=1f1b schedule.1f1b_v.pull_ahed=1
unused="config $synthetic schedule.1f1b_v.pull_ahead=1 schedule.magic.depth=3 schedule.magic.width=zz"
for changed in "" --changed; do
    # shellcheck disable=SC2086
    expect 0 "pull_ahead = 1 ; command line" $unused --plugin-dir "$faults" $changed
    expect 0 "width = zz ; command line" $unused --plugin-dir "$faults" $changed
    [ "$(grep -cF '[schedule.magic]' out)" -eq 1 ] || say "a stray section: $(cat out)"
done
# shellcheck disable=SC2086
expect_json 0 '{"heddle": "0.1.0", "command": "config", "config": {' $unused --plugin-dir "$faults"
grep -qF '"schedule.magic": {"depth": {"value": 3, "origin": "command line"}, "width"' out ||
    say "a stray section in JSON: $(cat out)"

# --- list and inspect ----------------------------------------------------------------------------
expect 0 "1f1b" list schedule
expect 0 "wrong magic" list --all --plugin-dir "$faults"
"$heddle" list --plugin-dir "$faults" | grep -q magic && say "list shows what was rejected"
expect_json 0 '{"heddle": "0.1.0", "command": "list", "plugins": [{"kind": ' list
expect_json 0 '{"heddle": "0.1.0", "command": "list", "plugins": [' list --all --plugin-dir "$faults"
expect 0 "self-check: plans 4 ranks, 4 stages, 8 microbatches with 64 actions" inspect 1f1b
expect 0 "schedule.1f1b" inspect schedule.1f1b
expect 0 "as at the beginning" inspect "$faults/heddle_schedule_abi10.so"
expect 3 "wrong magic" inspect "$faults/heddle_schedule_magic.so"
expect 3 "wrong magic" inspect magic --plugin-dir "$faults"
expect 3 "cannot find a plugin nothing" inspect nothing
expect 2 "inspect needs" inspect
expect_json 0 '{"heddle": "0.1.0", "command": "inspect", "kind": "schedule", "name": "1f1b"' inspect 1f1b
expect_json 3 '{"heddle": "0.1.0", "command": "inspect", "error": {"code": 3' inspect nothing

# One name in two kinds: a transport and a schedule called sound.
mkdir -p two
cp "$faults/heddle_schedule_sound.so" two/
cp "$faults/heddle_schedule_sound.so" two/heddle_transport_sound.so
expect 2 "write schedule.sound or transport.sound" inspect sound --plugin-dir two
expect 0 "all is right" inspect schedule.sound --plugin-dir two

# --- surroundings --------------------------------------------------------------------------------
HEDDLE_PLUGIN_DIR=x "$heddle" --version >out 2>err || say "an unknown variable is an error"
grep -q "HEDDLE_PLUGIN_DIR" err || say "an unknown HEDDLE_ name is not warned about"
HEDDLE_PLUGIN_PATH="$faults" "$heddle" list schedule | grep -q sound || say "HEDDLE_PLUGIN_PATH"
"$heddle" --version >/dev/full 2>err
[ $? -eq 7 ] || say "a full disk is not exit 7"
[ "$(wc -l <err)" -eq 1 ] || say "a full disk is not one line"
# A reader that has closed the pipe before the first word: only the exit code reports it.
mkfifo gone
{
    cat gone
    "$heddle" list 2>err
    echo $? >code
} | {
    exec <&-
    : >gone
}
[ "$(cat code)" = 141 ] || say "a pipe without a reader: exit $(cat code)"
[ -s err ] && say "a pipe without a reader: $(cat err)"
"$heddle" inspect 1f1b --color=always | grep -q "$(printf '\033')" || say "--color=always"
"$heddle" inspect 1f1b | grep -q "$(printf '\033')" && say "colour in a pipe"

[ $failed -eq 0 ] && echo "the command line holds"
exit $failed
