#!/usr/bin/env bash
# tests/slurm.test.sh - `srun --mpi=pmix` on a Slurm of one node, made for this test: the forked run's
# results, to the last bit.  Needs the packages slurmctld, slurmd, slurm-client and
# slurm-wlm-basic-plugins, which our scripts do not install.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
skip() {
    echo "skipped: $*"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "only root starts a Slurm of its own"
for program in slurmctld slurmd srun; do
    command -v $program >/dev/null || skip "no $program"
done
ldd "$heddle" | grep -q libpmix || skip "built without libpmix"

unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
work="$HD_BUILD_DIR/tests/slurm_work"
rm -rf "$work"
mkdir -p "$work"/{run,state,spool}
cd "$work" || exit 1
host=$(hostname -s)
port=$((10000 + $$ % 20000))
cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
AuthType=auth/none
CredType=cred/none
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile=$work/run/slurmctld.pid
SlurmdPidFile=$work/run/slurmd.pid
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SwitchType=switch/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
JobAcctGatherType=jobacct_gather/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=100 State=UNKNOWN
SlurmdParameters=config_overrides
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
END
export SLURM_CONF=$work/slurm.conf
slurmctld -D >slurmctld.out 2>&1 &
controller=$!
slurmd -D -N "$host" >slurmd.out 2>&1 &
node=$!
finish() {
    kill $node $controller 2>/dev/null
    wait $node $controller 2>/dev/null
}
trap finish EXIT
for ((turn = 0; turn < 300; turn++)); do
    sinfo -h -o %t 2>/dev/null | grep -q idle && break
    sleep 0.1
done
sinfo -h -o %t 2>/dev/null | grep -q idle || skip "this Slurm does not start: $(tail -n 2 slurmctld.log slurmd.log 2>&1)"
srun --mpi=list 2>&1 | grep -q pmix || skip "this Slurm has no PMIx"

failed=0
say() {
    echo "FAILED: $*"
    failed=1
}
field() {
    grep -oE "\"$2\": (\"[^\"]*\"|\[[^]]*\]|[-+.0-9e]+|null)" "$1/run.json" | head -n 1
}
model="kernels.name=reference kernels.precision=f32 model.layers=4 model.width=16 model.heads=2
    model.experts=2 model.experts_per_token=1 model.expert_width=16 model.sequence=16
    data.microbatch_size=1 pipeline.ranks=4 pipeline.stages_per_rank=1 pipeline.microbatches=4 train.steps=4"
# shellcheck disable=SC2086
"$heddle" run $model output.directory=forked >forked.out 2>&1 || say "forked: $(cat forked.out)"
# The leak checker must ignore what libpmix does not free.
echo "leak:libpmix" >leaks
export LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}suppressions=$work/leaks:print_suppressions=0"
# shellcheck disable=SC2086
timeout 60 srun --mpi=pmix -n 4 "$heddle" run $model output.directory=srun >srun.out 2>&1 ||
    say "srun: exit $?: $(head -c 800 srun.out)"
for key in losses grad_norms parameters_hash exit; do
    [ "$(field srun $key)" = "$(field forked $key)" ] || say "srun: $key is $(field srun $key)"
done
# shellcheck disable=SC2086
timeout 60 srun --mpi=pmix -n 3 "$heddle" run $model output.directory=three >three.out 2>&1 &&
    say "srun -n 3 runs a plan of four"
grep -qF "P*D = 4, got 3 processes" three.out || say "srun -n 3: $(head -c 400 three.out)"
[ $failed -eq 0 ] && rm -rf "$work"
exit $failed
