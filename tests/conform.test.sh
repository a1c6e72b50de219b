#!/usr/bin/env bash
# heddle conform: every plugin of ours passes; every faulty plugin fails the check of the rule that it
# breaks; text, JSON, JUnit and exit codes are as docs/interface.md says.
set -uo pipefail
heddle=$HD_BUILD_DIR/bin/heddle
faults=$HD_BUILD_DIR/tests/fault
json=$HD_BUILD_DIR/tests/json_check
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG
cd "$world" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

# passes WORDS...: exit 0, and not a single check failed.
passes() {
    "$heddle" conform "$@" >out 2>err || say "conform $*: exit $?: $(cat err) $(grep '^  fail' out)"
    [ -s err ] && say "conform $*: speaks on stderr: $(head -n 1 err)"
}

# fails CHECK FILE KEY=VALUE...: with the fault the check fails and is the one that is named; the same
# plugin without it passes the same check.
fails() {
    local check=$1 file=$faults/heddle_$2.so
    shift 2
    "$heddle" conform "$file" --check "$check" "$@" >out 2>err
    [ $? -eq 1 ] || say "$file $*: $check does not fail"
    grep -q "^  fail  [a-z]* *$check " out || say "$file $*: no line says that $check failed"
    grep -q "1 of 1 checks failed: $check" err || say "$file $*: '$(cat err)' does not name $check"
}
fails_by() { # CHECK KIND_NAME FAULT...
    local check=$1 plugin=$2
    shift 2
    for fault in "$@"; do
        fails "$check" "$plugin" "${plugin%%_*}.${plugin#*_}.does=$fault" transport.timeout_s=1
    done
    passes "$faults/heddle_$plugin.so" --check "$check"
}

# --- ours ---------------------------------------------------------------------------------------
for path in "$HD_PLUGIN_DIR"/heddle_*.so; do
    name=${path##*/heddle_}
    # Their own tests.
    case $name in transport_cuda_ipc.so | transport_nccl*.so | kernel_cuda.so) continue ;; esac
    passes "$path" --bytes-max 4M
    grep -q "^${name%%_*}\.[a-z0-9_]*.* level fault, seed 1" out || say "$path: no head line"
done

# --- broken schedules ---------------------------------------------------------------------------
fails_by refusal schedule_breaker mute long
fails_by placement schedule_breaker crowd nowhere
fails_by counting schedule_breaker overrun uncounted
fails_by scratch schedule_breaker greedy
fails_by laws schedule_breaker causal incomplete crash
fails_by purity schedule_breaker static rubbish
fails_by quiet schedule_breaker speaks
fails_by linear schedule_breaker quadratic
fails_by large schedule_breaker tires
fails_by limits schedule_breaker narrow
fails forward_only schedule_sound
fails descriptor schedule_wordy
fails options schedule_wordy
"$heddle" conform "$faults/heddle_schedule_breaker.so" --check laws schedule.breaker.does=crash >out 2>&1
grep -q 'P=5 V=1 m=7: killed by SIGABRT' out || say "a crash does not say where: $(cat out)"

# --- broken transports ---------------------------------------------------------------------------
fails_by order transport_lossy lose repeat never
fails_by exactly_once transport_lossy corrupt repeat
fails_by seal transport_lossy cut unseal
fails_by arrival transport_lossy early
fails_by visible transport_lossy early
fails_by lease transport_lossy credit
fails_by busy transport_lossy credit
fails_by out_of_turn transport_lossy anyturn forget
fails_by out_of_lease transport_lossy anyturn
fails_by abort transport_lossy deaf
fails_by order transport_lossy leave
fails reopen transport_lossy
fails two_instances transport_lossy
fails open_alone transport_lossy
fails refused_open transport_lossy
fails seal transport_lossy transport.lossy.does=repeat transport.lossy.sequence=5
fails_by group transport_rendezvous ungroup
passes "$faults/heddle_transport_rendezvous.so" --bytes-max 4M
fails promises transport_boaster
fails_by slots transport_spoiled crooked mix_up
fails_by stats transport_spoiled overcount nameless roomy
fails_by sizes transport_spoiled whole_words
fails_by pair transport_spoiled share
fails_by ring transport_spoiled hoard
fails_by quiesce transport_spoiled hasty
fails_by dead_peer transport_spoiled blind slander
fails_by stopped_peer transport_spoiled slander
fails stopped_peer transport_spoiled transport.spoiled.does=patient --limit 3
fails large transport_spoiled transport.spoiled.does=cut --bytes-max 4M
passes "$faults/heddle_transport_spoiled.so" --check large --bytes-max 4M

# --- broken kernels ------------------------------------------------------------------------------
fails_by halves kernel_breaker uneven
fails_by device kernel_breaker roomy leaky
fails_by refusal kernel_breaker mute
fails_by needs kernel_breaker moody
fails_by tensors kernel_breaker overlap namesake
fails_by copies kernel_breaker forgetful
fails_by regions kernel_breaker overrun leaves
fails_by ordered kernel_breaker lingers
fails_by frugal kernel_breaker wasteful
fails_by repeatable kernel_breaker counts
fails_by splittable kernel_breaker sums rounded
fails_by additive kernel_breaker replaces tidy
fails_by write_once kernel_breaker partial reads
fails_by read_only kernel_breaker scribbles
fails_by evaluation kernel_breaker careless
fails_by gradient kernel_breaker steep half
fails_by norms kernel_breaker loud
fails_by update kernel_breaker unbiased
fails_by stamp kernel_breaker unstamped
fails_by garbage kernel_breaker wild
fails_by nan kernel_breaker quiet
# A deadline is for one call: 20 passes of 100 ms are not overdue after a second, a hanging one is.
passes "$faults/heddle_kernel_breaker.so" --check repeatable --limit 1 kernel.breaker.does=slow
fails repeatable kernel_breaker kernel.breaker.does=hangs --limit 1
grep -q 'killed, because it did not end within 1 s' out || say "a pass that hangs: $(cat out)"

# --- what is printed ------------------------------------------------------------------------------
"$heddle" conform schedule.1f1b --level load --json --junit out.xml >out 2>err || say "--json: exit $?"
"$json" out || say "--json prints no JSON object"
grep -q '"checks": \[{"name": "descriptor", "level": "load", "law": ' out || say "--json: $(cat out)"
grep -q '"passed": 2, "failed": 0, "skipped": 0' out || say "--json counts: $(cat out)"
[ "$(grep -c '<testcase classname="schedule.1f1b.load" name="' out.xml)" -eq 2 ] || say "$(cat out.xml)"
grep -q 'tests="2" failures="0" errors="0" skipped="0"' out.xml || say "$(cat out.xml)"
"$heddle" conform "$faults/heddle_schedule_breaker.so" --check refusal --check scratch --json \
    --junit out.xml schedule.breaker.does=mute >out 2>err
[ $? -eq 1 ] || say "a failed check: another exit code"
"$json" out || say "--json of a failure is no JSON object"
grep -q '"error": {"code": 1, "place": "schedule.breaker"' out || say "--json has no error: $(cat out)"
grep -q 'tests="2" failures="1"' out.xml || say "$(cat out.xml)"
grep -q '<failure message="P=1 V=2 m=1: &quot;not with' out.xml || say "not escaped: $(cat out.xml)"

# exits CODE FRAGMENT WORDS...
exits() {
    local code=$1 fragment=$2
    shift 2
    "$heddle" conform "$@" >out 2>err
    [ $? -eq "$code" ] || say "conform $*: not exit $code: $(cat err)"
    grep -qF -- "$fragment" err || say "conform $*: '$(cat err)' lacks '$fragment'"
}
exits 2 "needs the name of a plugin"
exits 2 "the nearest one is laws" schedule.1f1b --check lawz
exits 2 "--level must be load, api" schedule.1f1b --level all
exits 2 "--seed must be a whole number" schedule.1f1b --seed x
exits 2 "--limit must be a number of seconds" shm --limit 0
exits 2 "--bytes-max must be a number of bytes" shm --bytes-max 1x
exits 2 "no such key" schedule.1f1b pipeline.nothing=1
exits 3 "cannot find a plugin nothing" nothing
exits 3 "No such file" ./heddle_schedule_nowhere.so
exits 3 "magic" "$faults/heddle_schedule_magic.so"
exits 7 "No such file" schedule.1f1b --level load --junit nowhere/out.xml
FAULT_CONSTRUCTOR=abort exits 3 "crashes on it (signal 6)" "$faults/heddle_schedule_constructor.so"

# --list, --only-failed, --in-process.
"$heddle" conform --list transport >out 2>err || say "--list transport: exit $?"
grep -q '^  api        slots             slots are aligned' out || say "--list transport: $(cat out)"
"$heddle" conform --list schedule.1f1b >out 2>err || say "--list schedule.1f1b: exit $?"
grep -q '^  semantics  laws ' out || say "--list schedule.1f1b: $(cat out)"
"$heddle" conform --list kernel --json >out 2>err || say "--list --json: exit $?"
"$json" out || say "--list --json prints no JSON object"
"$heddle" conform "$faults/heddle_schedule_breaker.so" --only-failed schedule.breaker.does=mute >out 2>err
[ $? -eq 1 ] || say "--only-failed: another exit code"
[ "$(head -n 1 out | cut -c1-26)" = "  fail  api        refusal" ] || say "--only-failed: $(cat out)"
[ "$(wc -l <out)" -eq 2 ] || say "--only-failed prints other lines: $(cat out)"
"$heddle" conform schedule.1f1b --check laws --in-process >out 2>err || say "--in-process: exit $?"
"$heddle" conform shm --check order --in-process >out 2>err || say "--in-process of shm: exit $? $(cat out)"
"$heddle" conform "$faults/heddle_schedule_breaker.so" --check laws --in-process \
    schedule.breaker.does=causal >out 2>err
[ $? -eq 1 ] || say "--in-process of a fault: not exit 1: $(cat out)"
( "$heddle" conform "$faults/heddle_schedule_breaker.so" --check laws --in-process \
    schedule.breaker.does=crash ) >out 2>err
[ $? -gt 128 ] || say "--in-process: a crash does not end the process: $(cat out err)"
exits 2 "--in-process needs one --check" schedule.1f1b --in-process

# A kernel that refuses every model cannot be judged, and the exit code says so.
mkdir refusing
sed 's/spec->experts != 0/spec->layers != 0/' "$HD_SOURCE_DIR/examples/kernel/tiny_mlp.c" >refusing/tiny_mlp.c
"$HD_CC" -std=c17 -D_GNU_SOURCE -fPIC -fvisibility=hidden -shared -I "$HD_SOURCE_DIR/core/include" \
    -I "$HD_SOURCE_DIR/examples/kernel" -o refusing/heddle_kernel_tiny_mlp.so refusing/tiny_mlp.c \
    "$HD_SOURCE_DIR/examples/kernel/passes.c" -lm || say "a kernel that refuses everything cannot be built"
exits 1 "checks were skipped, which is too many to judge the plugin" refusing/heddle_kernel_tiny_mlp.so
"$heddle" conform refusing/heddle_kernel_tiny_mlp.so --check needs >out 2>&1 || say "one skipped check: exit $?"

# A hang ends at the deadline of its check and is reported as one.
"$heddle" conform "$faults/heddle_schedule_breaker.so" --check laws --limit 1 schedule.breaker.does=hang \
    >out 2>&1
grep -q 'P=5 V=1 m=7: killed, because it did not end within 1 s' out || say "a hang: $(cat out)"
exit $failed
