#!/bin/sh
# tests/hazard.test.sh - debug.fault, as a user sees it: payload slots used again too early.  With the
# stamp check a run fails and names stage, slot, owner and intruder; without it the run exits 0 with
# other parameters, and nothing else shows it (the report, section 6.4).
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
work="$HD_BUILD_DIR/tests/hazard_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

# run PRECISION WORDS...: exit code in $code, parameters in $hash.
run() {
    precision=$1
    shift
    "$heddle" run kernels.precision="$precision" model.layers=2 model.width=64 \
        model.expert_width=32 model.vocabulary=64 model.sequence=16 data.microbatch_size=2 \
        pipeline.ranks=2 pipeline.microbatches=4 train.steps=2 train.warmup_steps=1 output.trace=off \
        output.directory=run --overwrite --quiet "$@" >out 2>err
    code=$?
    hash=$(tr ',' '\n' <run/run.json | grep parameters_hash | tr -dc '0-9a-f"' | tail -c 20)
}

# Two half batches lease two slots for each forward: 2 and 1 slots of the two stages become 4 and 2.
for kernel in reference synthetic; do
    for halves in 1 2; do
        run bf16 kernels.name=$kernel model.half_batches=$halves debug.poison=on
        [ $code -eq 0 ] || say "$kernel, half_batches $halves: exit $code: $(head -n 1 err)"
        peaks=$(tr ',' '\n' <run/run.json | grep peak_payload_slots | tr -dc '0-9\n' | tr '\n' ' ')
        [ "$peaks" = "$((2 * halves)) $halves " ] || say "$kernel, $halves: peak slots $peaks"
    done
done

for precision in bf16 mxfp8; do
    run $precision kernels.name=reference
    [ $code -eq 0 ] || say "$precision: exit $code: $(head -n 1 err)"
    right=$hash
    run $precision kernels.name=reference debug.poison=on pipeline.payload_slots=4
    [ "$hash" = "$right" ] || say "$precision: a pool of a slot a microbatch changes the parameters"
    for fault in lease_off early_release forward_order; do
        run $precision kernels.name=reference debug.fault=$fault
        [ $code -eq 1 ] || say "$precision, $fault: exit $code: $(head -n 1 err)"
        for part in "stage 0, microbatch 0" "payload slot 0" "found generation 2 of microbatch 1"; do
            grep -qF "$part" err || say "$precision, $fault: '$(head -n 1 err)' lacks '$part'"
        done
        run $precision kernels.name=reference debug.fault=$fault kernel.reference.check_stamps=off
        [ $code -eq 0 ] || say "$precision, $fault, no check: exit $code: $(head -n 1 err)"
        [ "$hash" != "$right" ] || say "$precision, $fault, no check: it has the right parameters"
    done
done

# A kernel that leaves input_gradient unwritten: a poisoned slot shows it over every transport, in place
# or not, also when it has carried an earlier gradient.
for transport in shm ucx_tag ucx_put; do
    [ -e "$HD_PLUGIN_DIR/heddle_transport_$transport.so" ] || continue
    for fault in loss unwritten; do
        run f32 --plugin-dir "$HD_BUILD_DIR/tests/fault" kernels.name=spoiled model.experts=0 \
            transport.name=$transport kernel.spoiled.does=$fault kernel.spoiled.count=0 \
            debug.poison=on
        want=0
        [ $fault = loss ] || want=6
        [ $code -eq $want ] || say "$transport, $fault: exit $code: $(head -n 1 err)"
    done
done

exit $failed
