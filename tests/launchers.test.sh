#!/usr/bin/env bash
# tests/launchers.test.sh - `heddle run` as the ranks of a launcher: by torchrun's five variables, by
# mpirun, and on two hosts made of namespaces.  The results have the bits of the
# forked run; every failure ends every process, with one exit code, and names the right rank.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
work="$HD_BUILD_DIR/tests/launchers_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0
port=$((10000 + $$ % 20000))
model="kernels.name=reference kernels.precision=f32 model.layers=4 model.width=16 model.heads=2
    model.experts=2 model.experts_per_token=1 model.expert_width=16 model.sequence=16
    data.microbatch_size=1 pipeline.ranks=4 pipeline.stages_per_rank=1 pipeline.microbatches=4"
# Stages that only take time, for runs that a signal ends; more steps than the test waits for.
endless="kernels.name=synthetic cost.tick_us=1000 train.steps=1000000 pipeline.ranks=4
    pipeline.stages_per_rank=1 pipeline.microbatches=4 output.checkpoint_every=never"

say() {
    echo "FAILED: $*"
    failed=1
}

has() { # NAME FILE FRAGMENT
    grep -qF -- "$3" "$2" || say "$1: no '$3' in: $(head -c 800 "$2")"
}

# rank NAME RANK WORLD WORDS...: one process by hand, in the background; its output and code in NAME.RANK.*
rank() {
    local name=$1 rank=$2 world=$3
    shift 3
    env RANK="$rank" WORLD_SIZE="$world" LOCAL_RANK="$rank" MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" \
        "$heddle" run "$@" >"$name.$rank.out" 2>"$name.$rank.err" &
    echo $! >"$name.$rank.pid"
}

# ends NAME RANK CODE: waits for one process of this shell and checks its exit code.
ends() {
    wait "$(cat "$1.$2.pid")"
    local got=$?
    [ $got -eq "$3" ] || say "$1: rank $2 exits with $got, not $3: $(head -c 600 "$1.$2.err")"
}

# field NAME KEY: a scalar or a list of run.json.
field() {
    grep -oE "\"$2\": (\"[^\"]*\"|\[[^]]*\]|[-+.0-9e]+|null)" "$1/run.json" | head -n 1
}

same_as_forked() { # DIRECTORY
    local key
    for key in losses grad_norms parameters_hash exit; do
        [ "$(field "$1" $key)" = "$(field forked $key)" ] ||
            say "$1: $key is $(field "$1" $key), forked $(field forked $key)"
    done
    cmp -s "$1/checkpoint/model.safetensors" forked/checkpoint/model.safetensors ||
        say "$1: another checkpoint"
    # Waits and launches are present only if they took time.
    [ "$(grep -cE '"cat": "(compute|transfer)"' "$1/trace.json")" = "$(grep -cE '"cat": "(compute|transfer)"' forked/trace.json)" ] ||
        say "$1: the trace has other spans"
    [ "$(ls "$1/log" | wc -l)" -eq 4 ] || say "$1: not four logs"
}

# The numbers of step COUNT have been written; with a bound, in case the run is stuck.
wait_for_step() { # DIRECTORY COUNT
    local turn
    for ((turn = 0; turn < 3000; turn++)); do
        [ "$(wc -l 2>/dev/null <"$1/metrics.jsonl" || echo 0)" -ge "$2" ] && return 0
        sleep 0.01
    done
    say "$1: step $2 never came"
    return 1
}

# shellcheck disable=SC2086
"$heddle" run $model train.steps=4 output.directory=forked >forked.out 2>&1 || say "forked: $(cat forked.out)"
grep -q '"parameters_hash": "' forked/run.json || say "the forked run has no hash to compare"

# --- torchrun's variables, by hand ---------------------------------------------------------------
for number in 3 2 1 0; do
    rank variables $number 4 $model train.steps=4 output.directory=variables
done
for number in 0 1 2 3; do ends variables $number 0; done
same_as_forked variables
has "rank 0 speaks" variables.0.out "parameters "
for number in 1 2 3; do
    [ -s variables.$number.out ] && say "rank $number speaks: $(cat variables.$number.out)"
done

# A resumed run continues where the launched one ended; only rank 0 prints the object.
for number in 0 1 2 3; do
    rank resumed $number 4 --json --resume variables train.steps=6
done
for number in 0 1 2 3; do ends resumed $number 0; done
has "one object" resumed.0.out '"steps": 6'
"$heddle" run --resume forked train.steps=6 >resumed.out 2>&1 || say "resumed: $(cat resumed.out)"
[ "$(field variables parameters_hash)" = "$(field forked parameters_hash)" ] ||
    say "resumed: $(field variables parameters_hash), forked $(field forked parameters_hash)"

# One process is not a launched run: it forks its ranks, also under torchrun with one process.
env RANK=0 WORLD_SIZE=1 "$heddle" run $model train.steps=1 output.directory=alone >alone.out 2>&1 ||
    say "a world of one: $(cat alone.out)"

# --- who is who ----------------------------------------------------------------------------------
refused() { # NAME CODE FRAGMENT ENVIRONMENT...
    local name=$1 code=$2 fragment=$3
    shift 3
    env "$@" "$heddle" run $model output.directory=refused >"$name.out" 2>&1
    local got=$?
    [ $got -eq "$code" ] || say "$name: exit $got, not $code"
    has "$name" "$name.out" "$fragment"
}
all="LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port"
# shellcheck disable=SC2086
{
    refused world 2 "P*D = 4, got 3 processes" RANK=0 WORLD_SIZE=3 $all
    refused word 2 "environment: RANK: '1st' is not a whole number" RANK=1st WORLD_SIZE=4 $all
    refused large 2 "rank 4 is not below WORLD_SIZE, which is 4" RANK=4 WORLD_SIZE=4 $all
    refused local 2 "environment: LOCAL_RANK: it is not set" RANK=1 WORLD_SIZE=4 MASTER_ADDR=x MASTER_PORT=1
    refused address 2 "environment: MASTER_ADDR: it is not set" RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_PORT=1
    refused size 2 "environment: WORLD_SIZE: it is not set" RANK=1 $all
    refused number 2 "environment: MASTER_PORT: '65536' is not a whole number" RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 \
        MASTER_ADDR=x MASTER_PORT=65536
    refused zero 2 "environment: MASTER_PORT: '0' is not a port" RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=0
    refused empty 2 "environment: RANK: it is set, but empty" RANK=
    refused empty_rank 2 "environment: RANK: it is set, but empty" RANK= WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=$port
    refused empty_port 2 "environment: MASTER_PORT: it is set, but empty" RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 \
        MASTER_ADDR=127.0.0.1 MASTER_PORT=
    for number in 0 1; do # .invalid is reserved: no resolver has it
        refused name$number 2 "environment: MASTER_ADDR: cannot resolve 'no.such.host.invalid': " RANK=$number \
            WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=no.such.host.invalid MASTER_PORT=$port
    done
}
[ -e refused ] && say "a refused launch leaves a directory"

port=$((port + 1))
for number in 0 1 2; do
    rank twice $number 4 $model output.directory=twice transport.first_step_timeout_s=20
done
env RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$heddle" run $model \
    output.directory=twice transport.first_step_timeout_s=20 >twice.again.out 2>twice.again.err &
echo $! >twice.again.pid
for number in 0 1 2 again; do
    ends twice $number 2
    has "a rank claimed twice" twice.$number.err "rank 1 claimed twice: by process "
done

port=$((port + 1))
rank missing 0 4 $model output.directory=missing transport.first_step_timeout_s=1.5
rank missing 2 4 $model output.directory=missing transport.first_step_timeout_s=1.5
for number in 0 2; do
    ends missing $number 5
    has "missing ranks" missing.$number.err "ranks 1, 3 have not connected within 1.5 s: 2 of 4 are here"
done
rank hubless 1 4 $model output.directory=missing transport.first_step_timeout_s=1.5
ends hubless 1 5
has "no rank 0" hubless.1.err "rank 1: cannot connect to rank 0 at 127.0.0.1 port $port within 1.5 s"

# A process with another plan, and a process that is not a rank.
port=$((port + 1))
rank other 0 4 $model output.directory=other transport.first_step_timeout_s=20
rank other 1 4 $model output.directory=other pipeline.microbatches=8 transport.first_step_timeout_s=20
for number in 0 1; do
    ends other $number 2
    has "another plan" other.$number.err "launch: pipeline.microbatches: rank 1 on "
    has "another plan" other.$number.err " has 8, rank 0 has 4: "
done

# Everything that a rank acts on is compared before step 1: the key is named, and both values.
two="$model pipeline.ranks=2 train.steps=6 train.warmup_steps=2 transport.first_step_timeout_s=20"
differ() { # NAME KEY VALUE1 VALUE0 WORDS... [-- WORDS...]: what rank 1 has more, and what rank 0 has
    local name=$1 key=$2 one=$3 zero=$4 number words=()
    shift 4
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        words+=("$1")
        shift
    done
    [ $# -gt 0 ] && shift
    port=$((port + 1))
    rank "$name" 0 2 $two output.directory="$name" "$@"
    rank "$name" 1 2 $two output.directory="$name" "${words[@]}"
    for number in 0 1; do
        ends "$name" $number 2
        has "$name differs" "$name.$number.err" "launch: $key: rank 1 on "
        has "$name differs" "$name.$number.err" " has $one"
        has "$name differs" "$name.$number.err" ", rank 0 has $zero"
    done
    [ -e "$name" ] && say "$name differs: the run has begun"
}
differ rate train.learning_rate 0.01 0.003 train.learning_rate=1e-2 -- train.learning_rate=0.003
differ steps train.steps 4 6 train.steps=4
differ seed train.seed 9007199254740993 9007199254740992 train.seed=9007199254740993 -- train.seed=9007199254740992
differ weight_decay train.weight_decay 0.2 0.1 train.weight_decay=0.2
differ clip train.clip_norm 0 1 train.clip_norm=0
differ decay train.decay cosine none train.decay=cosine
differ epsilon model.norm_epsilon 1e-6 1e-5 model.norm_epsilon=1e-6
differ theta model.rope_theta 500000 10000 model.rope_theta=5e5
differ gates model.normalize_gates on off model.normalize_gates=true
differ rule kernels.scale_rule floor up kernels.scale_rule=floor
differ every output.checkpoint_every never 2 output.checkpoint_every=never -- output.checkpoint_every=2
differ trace output.trace_steps 2 3 output.trace_steps=2
differ option transport.hook_fault.seed 2 "" transport.name=hook_fault transport.inner=shm transport.hook_fault.seed=2 \
    -- transport.name=hook_fault transport.inner=shm
differ evaluate --evaluate on off --evaluate
head -c 4000 /dev/zero | tr '\0' a >one.txt
head -c 3999 /dev/zero | tr '\0' a >other.txt
echo -n b >>other.txt
differ corpus data.corpus "4000 bytes, SHA-256 " "4000 bytes, SHA-256 " data.corpus=other.txt -- data.corpus=one.txt
differ nowhere data.corpus "cannot be read: No such file" "4000 bytes, SHA-256 " data.corpus=none.txt -- data.corpus=one.txt
mkdir plugins
cp "$HD_PLUGIN_DIR"/* plugins/
kernel=$(basename plugins/*kernel*reference*.so)
echo >>plugins/"$kernel"
differ plugin kernels.name "reference " "reference " --plugin-dir plugins
# shellcheck disable=SC2086
"$heddle" run $model pipeline.ranks=2 train.steps=4 output.directory=earlier >earlier.out 2>&1 || say "$(cat earlier.out)"
# shellcheck disable=SC2086
"$heddle" run $model pipeline.ranks=2 train.steps=3 output.directory=earliest >earliest.out 2>&1 || say "$(cat earliest.out)"
differ checkpoint --resume "step 3, " "step 4, " --resume earliest -- --resume earlier
# Two spellings of one value, and two paths of one corpus, agree.
cp one.txt same.txt
port=$((port + 1))
rank spelled 0 2 $model pipeline.ranks=2 train.steps=1 output.directory=spelled train.learning_rate=1e-2 data.corpus=one.txt
rank spelled 1 2 $model pipeline.ranks=2 train.steps=1 output.directory=spelt train.learning_rate=0.01 data.corpus=same.txt
for number in 0 1; do ends spelled $number 0; done
port=$((port + 1))
rank stranger 0 4 $model train.steps=1 output.directory=stranger
for ((turn = 0; turn < 500; turn++)); do
    # It sends something else, and keeps its connection open.
    exec 9<>/dev/tcp/127.0.0.1/$port && break
    sleep 0.01
done 2>/dev/null
echo "GET / HTTP/1.1" >&9
for number in 1 2 3; do rank stranger $number 4 $model train.steps=1 output.directory=stranger; done
for number in 0 1 2 3; do ends stranger $number 0; done
exec 9>&-

# A failure of rank 0 ends all ranks: the directory has a run.
port=$((port + 1))
for number in 0 1 2 3; do rank taken $number 4 $model output.directory=forked; done
for number in 0 1 2 3; do ends taken $number 2; done
has "a directory that is taken" taken.0.err "run.json"
[ -s taken.1.err ] && say "rank 1 repeats what rank 0 says: $(cat taken.1.err)"

# --- deaths, stops, signals ----------------------------------------------------------------------
begin() { # NAME WORDS...
    local name=$1 number
    shift
    port=$((port + 1))
    for number in 0 1 2 3; do
        rank "$name" $number 4 $endless output.directory="$name" "$@"
    done
    wait_for_step "$name" 2
}
child_of() { # NAME RANK: the rank itself, which the launched process has forked
    cat /proc/"$(cat "$1.$2.pid")"/task/*/children | tr -d ' '
}

begin death
kill -KILL "$(child_of death 2)"
for number in 0 1 2 3; do ends death $number 5; done
has "the rank itself dies" death.0.err "rank 2 died at "
has "the rank itself dies" death.0.err ", killed by signal 9"
has "hang.json names it" death/hang.json "rank 2 died at "

begin lost
kill -KILL "$(cat lost.2.pid)"
ends lost 2 137
for number in 0 1 3; do ends lost $number 5; done
has "its process dies" lost.0.err "rank 2 died at "
has "its process dies" lost.0.err "; its process on "

begin hub
kill -KILL "$(cat hub.0.pid)"
ends hub 0 137
for number in 1 2 3; do
    ends hub $number 5
    has "rank 0's process dies" hub.$number.err "rank 0 died at "
done

begin stop transport.timeout_s=0.5
kill -STOP "$(child_of stop 1)"
for number in 0 1 2 3; do ends stop $number 5; done
has "the rank itself is stopped" stop.0.err "rank 1 has been stopped at "

# After two seconds a silent process is told from a working one.
begin silence transport.timeout_s=2.5
kill -STOP "$(cat silence.1.pid)"
for number in 0 2 3; do ends silence $number 5; done
has "its process is stopped" silence.0.err "rank 1 has been silent for "
kill -KILL "$(cat silence.1.pid)"
ends silence 1 137

begin signal
kill -TERM "$(cat signal.3.pid)"
for number in 0 1 2 3; do ends signal $number 143; done
has "a signal to one" signal.0.err "ended by signal 15"
[ "$(field signal exit)" = '"exit": 143' ] || say "signal: $(field signal exit)"

begin single
kill -TERM "$(child_of single 2)"
for number in 0 1 2 3; do ends single $number 143; done
has "a signal to a rank alone" single.2.err "rank 2 got signal 15"

# --- mpirun --------------------------------------------------------------------------------------
# mpirun needs options to run as root and with more ranks than cores.
# The leak checker must ignore what libpmix does not free.
echo "leak:libpmix" >leaks
export LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}suppressions=$work/leaks:print_suppressions=0"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpi() { # NAME COUNT WORDS...
    local name=$1 count=$2
    shift 2
    timeout 120 mpirun --mca odls_base_sigkill_timeout "${kill_s:-1}" --oversubscribe -np "$count" "$heddle" run "$@" >"$name.out" 2>"$name.err"
}
if ! command -v mpirun >/dev/null; then
    echo "not run: no mpirun (package openmpi-bin)"
elif ! ldd "$heddle" | grep -q libpmix; then
    mpi absent 4 $model output.directory=absent && say "mpirun without libpmix: it runs"
    has "mpirun without libpmix" absent.err "was built without libpmix"
else
    mpi mpi 4 $model train.steps=4 output.directory=mpi || say "mpirun: exit $?: $(head -c 600 mpi.err)"
    "$heddle" run --overwrite $model train.steps=4 output.directory=forked >forked.out 2>&1 ||
        say "forked: $(cat forked.out)"
    same_as_forked mpi
    mpi three 3 $model output.directory=three && say "mpirun -np 3 runs a plan of four"
    has "mpirun -np 3" three.err "P*D = 4, got 3 processes"
    # The case of the issue: two programs of one job.
    mpi mixed 1 $model pipeline.ranks=2 output.directory=mixed : -np 1 "$heddle" run $model pipeline.ranks=2 \
        output.directory=mixed train.learning_rate=1e-2
    [ $? -eq 2 ] || say "mpirun, two learning rates: not exit 2"
    has "mpirun, two learning rates" mixed.err "train.learning_rate: rank 1 on "
    has "mpirun, two learning rates" mixed.err " has 0.01, rank 0 has 0.003"
    mpi one 1 $model train.steps=1 output.directory=one || say "mpirun -np 1: $(head -c 600 one.err)"

    kill_s=3 mpi dying 4 $endless output.directory=dying &
    launcher=$!
    wait_for_step dying 2
    # mpirun runs under timeout; its children are the ranks' processes.
    under=$(cat /proc/$launcher/task/*/children 2>/dev/null | tr -d ' ')
    victim=$(pgrep -P "$(pgrep -P "${under:-$launcher}" mpirun || echo "${under:-$launcher}")" heddle | sed -n 3p)
    kill -KILL "$victim"
    wait $launcher && say "mpirun: a killed rank is no failure"
    # mpirun may lose output that comes so late; the file has it.
    has "mpirun, a process killed" dying/hang.json "its process on "
fi

[ $failed -eq 0 ] && rm -rf "$work"
exit $failed
