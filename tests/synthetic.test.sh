#!/bin/sh
# tests/synthetic.test.sh - the synthetic kernel takes as long as its cost, even an absurd one: a forward
# of 1e12 ticks of 1e9 us overflows 64 bits of nanoseconds, and must not become 0.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
work="$HD_BUILD_DIR/tests/synthetic_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1

# A run without cost ends; the same with such a forward never does, so a signal has to end it.
plan="kernels.name=synthetic pipeline.ranks=1 model.layers=1 pipeline.microbatches=1 train.steps=1
      cost.backward=0 cost.tick_us=1e9 transport.timeout_s=0.5 transport.first_step_timeout_s=0.5"
# shellcheck disable=SC2086
"$heddle" run $plan cost.forward=0 >out 2>&1 || {
    echo "FAILED: a run without cost: $(tail -n 1 out)"
    exit 1
}
# shellcheck disable=SC2086
if timeout 2 "$heddle" run $plan cost.forward=1e12 >out 2>&1; then
    echo "FAILED: a forward of 1e24 ns took none: $(tail -n 3 out)"
    exit 1
fi
grep -q "signal 15" out || {
    echo "FAILED: ended, but not by the signal: $(tail -n 3 out)"
    exit 1
}
