#!/usr/bin/env bash
# nccl and nccl_rma over the stand-ins for CUDA and NCCL: the conformance suite, whole runs of every
# schedule on device stages, what a broken library does to the suite, and the real libraries on a
# machine without a driver.
set -uo pipefail
heddle=$HD_BUILD_DIR/bin/heddle
cuda=$HD_BUILD_DIR/tests/standin/libheddle_standin_cuda.so
nccl=$HD_BUILD_DIR/tests/standin/libheddle_standin_nccl.so
[ -e "$HD_PLUGIN_DIR/heddle_transport_nccl.so" ] && [ -e "$nccl" ] || {
    echo "skipped: the headers of CUDA or of NCCL are not installed, so the plugins are not built"
    exit 77
}
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG STANDIN_NCCL_FAULT STANDIN_CUDA_FAULT
cd "$world" || exit 1
export STANDIN_CUDA="devices=4" CUDA_DEVICE_MAX_CONNECTIONS=32
stages="kernels.name=synthetic kernel.synthetic.memory=cuda kernel.synthetic.cuda_runtime=$cuda"
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

conform() { # TRANSPORT WORDS...
    local name=$1
    shift
    # shellcheck disable=SC2086 # a list of words
    "$heddle" conform "$name" $stages transport."$name".cuda_runtime="$cuda" transport."$name".library="$nccl" \
        "$@" >out 2>err
}

# --- the suite ----------------------------------------------------------------------------------
# With the script that a machine with GPUs runs, every schedule.  One transfer at a time on each GPU, in
# the order issued: law 7 at its strictest.
STANDIN=1 STANDIN_NCCL="serial=on" "$HD_SOURCE_DIR/tests/gpu_nccl.test.sh" >out 2>&1 || say "gpu_nccl: $(grep FAILED out)"
[ "$(grep -cE '^2[4-9] passed, 0 failed' out)" -eq 2 ] || say "conform: $(grep ' passed, ' out)"
for name in nccl nccl_rma; do
    STANDIN_NCCL="breaks=torn" conform $name --check visible && say "$name: a torn message passes"
    grep -q '^  fail  semantics  visible' out || say "$name: torn: $(cat out)"
done
STANDIN_NCCL="breaks=stray" conform nccl_rma --check arrival transport.timeout_s=5 &&
    say "nccl_rma: a stray signal passes for a message"
grep -q '^  fail  semantics  arrival' out || say "nccl_rma: stray: $(cat out)"

# --- whole runs: synthetic stages check every tensor that they are given -------------------------
run() { # DIRECTORY WORDS...
    local directory=$1
    shift
    # shellcheck disable=SC2086 # a list of words
    "$heddle" run $stages train.steps=2 cost.tick_us=50 output.trace=off transport.timeout_s=30 \
        output.directory="$directory" --quiet "$@" >out 2>err
}

for name in nccl nccl_rma; do
    options="transport.name=$name transport.$name.cuda_runtime=$cuda transport.$name.library=$nccl"
    # The previous and the next peer are one rank; receives are posted late.
    # shellcheck disable=SC2086
    STANDIN_NCCL="serial=on" run "$name.two" $options pipeline.schedule=interleaved_1f1b pipeline.ranks=2 \
        pipeline.overlap=off || say "$name, two ranks, no overlap: exit $?: $(cat err)"
    # A hang in NCCL ends at the deadline, and the abort releases every stream.
    # shellcheck disable=SC2086
    STANDIN_NCCL_FAULT="ncclSend:4:hang ncclPutSignal:4:hang" run "$name.hang" $options transport.timeout_s=2 \
        transport.first_step_timeout_s=2
    [ $? -eq 5 ] || say "$name: a transfer that hangs ends with $? and not 5: $(cat err)"
done

# --- the real libraries, where there is no driver ------------------------------------------------
for name in nccl nccl_rma; do
    if [ ! -e /proc/driver/nvidia/version ]; then
        "$heddle" run transport.name=$name kernels.name=synthetic kernel.synthetic.memory=cuda train.steps=1 \
            output.directory=none.$name >out 2>err
        [ $? -eq 3 ] || say "$name without a driver: exit $? and not 3"
        grep -q 'driver\|not here' err || say "$name without a driver: $(cat err)"
    fi
done
exit $failed
