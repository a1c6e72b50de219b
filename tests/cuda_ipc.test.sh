#!/usr/bin/env bash
# The transport cuda_ipc as a user sees it: an error without a GPU; over the CUDA stand-in `heddle
# conform` passes, fails for four faults, and whole runs work.
set -uo pipefail
heddle=$HD_BUILD_DIR/bin/heddle
standin=$HD_BUILD_DIR/tests/standin/libheddle_standin_cuda.so
broken=$HD_BUILD_DIR/tests/fault/ipc/heddle_transport_cuda_ipc.so
if [ ! -e "$HD_PLUGIN_DIR/heddle_transport_cuda_ipc.so" ]; then
    echo "cuda_ipc is not built: CUDA's headers are not installed"
    exit 77
fi
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG CUDA_DEVICE_MAX_CONNECTIONS STANDIN_CUDA STANDIN_CUDA_FAULT
cd "$world" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

on_device="kernels.name=synthetic kernel.synthetic.memory=cuda transport.name=cuda_ipc"
over_standin="transport.cuda_ipc.cuda_runtime=$standin kernel.synthetic.cuda_runtime=$standin"
short="transport.timeout_s=20 output.directory=run output.checkpoint_every=never --overwrite --quiet train.steps=2
       cost.tick_us=1 model.width=32 model.sequence=32"

# ends CODE TEXT WORDS...: the run ends with the code, and stderr has the text.
ends() {
    local code=$1 text=$2 got
    shift 2
    # shellcheck disable=SC2086
    timeout 100 "$heddle" run $short "$@" >out 2>err
    got=$?
    [ $got -eq "$code" ] || say "run $*: exit $got, not $code: $(head -n 3 err)"
    [ -z "$text" ] || grep -q -- "$text" err || say "run $*: stderr has no '$text': $(head -n 3 err)"
}

# --- without a GPU ------------------------------------------------------------------------------
"$heddle" list transport 2>err | grep -q '^cuda_ipc\|^transport *cuda_ipc' || say "list does not show it"
# shellcheck disable=SC2086
{
    if [ ! -e /proc/driver/nvidia ]; then
        ends 3 'NVIDIA driver\|cannot load the CUDA runtime' $on_device
        ends 3 'NVIDIA driver\|cannot load the CUDA runtime' $on_device \
            kernel.synthetic.cuda_runtime="$standin"
    fi
    ends 3 'cannot load the CUDA runtime' $on_device $over_standin \
        transport.cuda_ipc.cuda_runtime="$world/absent.so"
    STANDIN_CUDA=mem_ops=off ends 3 CAN_USE_64_BIT_STREAM_MEM_OPS $on_device $over_standin
    CUDA_DEVICE_MAX_CONNECTIONS=1 ends 3 CUDA_DEVICE_MAX_CONNECTIONS=1 $on_device $over_standin
    ends 2 'computes in host memory' kernels.name=synthetic transport.name=cuda_ipc

    # --- whole runs: every message's pattern is checked by the kernel that reads it ----------------
    # (tests/test_oracle_device.c holds the numbers of every schedule against the host's)
    # (gpu_cuda_ipc, below, runs other schedules with overlap)
    for schedule in 1f1b interleaved_1f1b; do
        ends 0 '' $on_device $over_standin pipeline.schedule=$schedule pipeline.overlap=off
    done
    ends 0 '' $on_device $over_standin pipeline.ranks=2 pipeline.schedule=1f1b_v \
        pipeline.transfer_slots=auto debug.poison=on
    STANDIN_CUDA=devices=4 ends 0 '' $on_device $over_standin pipeline.schedule=interleaved_1f1b
    grep -q '"cuda_ipc/dev0-dev1"' run/run.json || say "run.json does not name the lane"

    # --- what goes wrong on a device ends the run, and says where ----------------------------------
    slow="transport.timeout_s=2 transport.first_step_timeout_s=2"
    STANDIN_CUDA_FAULT=cudaMemcpyAsync:40:async:700 ends 3 'illegal memory access' \
        $on_device $over_standin $slow
    STANDIN_CUDA_FAULT=cuStreamWriteValue64:30:hang ends 5 'rank ' $on_device $over_standin $slow

    # --- the contract ------------------------------------------------------------------------------
    # With the script that a machine with GPUs runs: all ranks on one device, and on two.
    STANDIN=1 "$HD_SOURCE_DIR/tests/gpu_cuda_ipc.test.sh" >out 2>&1 || say "gpu_cuda_ipc: $(grep FAILED out)"
    [ "$(grep -c '^2[5-9] passed, 0 failed, [12] skipped' out)" -eq 2 ] || say "conform: $(grep ' passed, ' out)"
    for row in visible:signal_first lease:early_credit order:early_wait prompt:stream_credit; do
        check=${row%:*}
        "$heddle" conform "$broken" $over_standin --check "$check" >out 2>err ||
            say "conform of a sound signal.c: $(cat err) $(grep '^  fail' out)"
        IPC_BROKEN=${row#*:} "$heddle" conform "$broken" $over_standin --check "$check" >out 2>err
        [ $? -eq 1 ] || say "$row: the check does not fail"
        grep -q "^  fail  semantics  $check " out || say "$row: $(cat out)"
    done
}
exit $failed
