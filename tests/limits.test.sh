#!/usr/bin/env bash
# tests/limits.test.sh - a machine that is too small for a transport: a limit on the size of files, and
# a small /dev/shm.  The rank with the reason is the cause, and the reason names the bytes.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
work="$HD_BUILD_DIR/tests/limits_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS UCX_TLS
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

# refuses TRANSPORT RANKS TEXT...: the run ends with 3, names a rank that has a reason, and says TEXT.
run="$heddle run model.experts=0 model.width=64 model.heads=2 model.sequence=64 data.microbatch_size=1
    output.checkpoint_every=never pipeline.microbatches=2 train.steps=1 output.directory=run --overwrite --quiet"
run=$(echo $run)
refuses() {
    local transport=$1 ranks=$2
    shift 2
    $run transport.name=$transport pipeline.ranks=$ranks model.layers=$ranks >out 2>err
    local code=$?
    [ $code -eq 3 ] || say "$transport: exit $code: $(head -n 1 err)"
    grep -q "its own error says why" err && say "$transport: no reason: $(head -n 1 err)"
    for text in "$@"; do
        head -n 1 err | grep -qF "$text" || say "$transport: '$(head -n 1 err)' lacks '$text'"
    done
}

for transport in shm ucx_tag ucx_put; do
    [ -e "$HD_PLUGIN_DIR/heddle_transport_$transport.so" ] || continue
    (
        ulimit -f 10
        refuses $transport 2 "the limit on the size of a file is 10240" "ulimit -f"
        exit $failed
    ) || failed=1
done

# UCX gives out of memory, no resources or nothing at all, as the ranks race for what is there.
if [ "$(id -u)" -eq 0 ] && [ -e "$HD_PLUGIN_DIR/heddle_transport_ucx_put.so" ]; then
    unshare -m sh -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm' 2>/dev/null ||
        { echo "no /dev/shm of its own is allowed here"; exit $failed; }
    for size in 1 24; do
        unshare -m sh -c "mount -t tmpfs -o size=${size}m tmpfs /dev/shm && exec $run \
            transport.name=ucx_put pipeline.ranks=8 model.layers=8" >out 2>err
        code=$?
        [ $code -eq 3 ] || say "/dev/shm of $size MB: exit $code: $(head -n 1 err)"
        grep -q "its own error says why" err && say "/dev/shm: no reason: $(head -n 1 err)"
        text="8 ranks need 37600000 bytes (4700000 each), and it has $((size * 1048576))"
        head -n 1 err | grep -qF "$text" || say "'$(head -n 1 err)' lacks '$text'"
    done
fi

exit $failed
