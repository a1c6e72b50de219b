#!/usr/bin/env bash
# tests/two_hosts.test.sh - a run by hand over two hosts: network namespaces joined by a veth pair, each
# process with its own space of pids and host name.  The results are the forked run's, to the last
# bit; a transport that stays on one host is refused; a cut cable ends both sides.
set -u
heddle="$HD_BUILD_DIR/bin/heddle"
work="$HD_BUILD_DIR/tests/two_hosts_work"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT TORCHELASTIC_USE_AGENT_STORE
left=hdl$$ right=hdr$$

skip() {
    echo "skipped: $*"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "only root makes network namespaces"
command -v ip >/dev/null || skip "no ip (package iproute2)"
[ -e "$HD_PLUGIN_DIR/heddle_transport_ucx_tag.so" ] || skip "no transport reaches another host"
ip netns add $left 2>/dev/null || skip "network namespaces are not allowed here"
finish() {
    ip netns del $left 2>/dev/null
    ip netns del $right 2>/dev/null
}
trap finish EXIT
ip netns add $right && ip link add v$left type veth peer name v$right &&
    ip link set v$left netns $left && ip link set v$right netns $right &&
    ip -n $left addr add 10.213.77.1/24 dev v$left && ip -n $right addr add 10.213.77.2/24 dev v$right &&
    ip -n $left link set v$left up && ip -n $right link set v$right up &&
    ip -n $left link set lo up && ip -n $right link set lo up || skip "no veth pair"
ip netns exec $left unshare --ipc --uts --pid --fork --mount-proc true 2>/dev/null ||
    skip "no space of pids of its own"

rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failed=0
model="kernels.name=reference kernels.precision=f32 model.layers=4 model.width=16 model.heads=2
    model.experts=2 model.experts_per_token=1 model.expert_width=16 model.sequence=16
    data.microbatch_size=1 pipeline.ranks=4 pipeline.stages_per_rank=1 pipeline.microbatches=4 train.steps=4"
endless="kernels.name=synthetic cost.tick_us=1000 train.steps=1000000 pipeline.ranks=4
    pipeline.stages_per_rank=1 pipeline.microbatches=4 output.checkpoint_every=never"

say() {
    echo "FAILED: $*"
    failed=1
}

has() { # NAME FILE FRAGMENT
    grep -qF -- "$3" "$2" || say "$1: no '$3' in: $(head -c 800 "$2")"
}

later="" # options of unshare for the right host's clock

# start NAME WORDS...: ranks 0 and 1 on the left, 2 and 3 on the right.
start() {
    local name=$1 number host clock
    shift
    for number in 0 1 2 3; do
        host=$left
        clock=""
        [ $number -ge 2 ] && host=$right && clock=$later
        # shellcheck disable=SC2016,SC2086
        RANK=$number WORLD_SIZE=4 LOCAL_RANK=$((number % 2)) MASTER_ADDR=10.213.77.1 MASTER_PORT=29500 \
            ip netns exec $host unshare --ipc --uts --pid $clock --fork --kill-child --mount-proc \
            sh -c 'hostname "$0"; exec "$@"' "${host%%[0-9]*}" "$heddle" run "$@" \
            output.directory="$name" >"$name.$number.out" 2>&1 &
        echo $! >"$name.$number.pid"
    done
}

ends() { # NAME CODE
    local number got
    for number in 0 1 2 3; do
        wait "$(cat "$1.$number.pid")"
        got=$?
        [ $got -eq "$2" ] || say "$1: rank $number exits with $got, not $2: $(head -c 600 "$1.$number.out")"
    done
}

field() {
    grep -oE "\"$2\": (\"[^\"]*\"|\[[^]]*\]|[-+.0-9e]+|null)" "$1/run.json" | head -n 1
}

# shellcheck disable=SC2086
"$heddle" run $model output.directory=forked >forked.out 2>&1 || say "forked: $(cat forked.out)"
for transport in ucx_tag ucx_put; do
    start $transport $model transport.name=$transport
    ends $transport 0
    for key in losses grad_norms parameters_hash; do
        [ "$(field $transport $key)" = "$(field forked $key)" ] ||
            say "$transport: $key is $(field $transport $key), forked $(field forked $key)"
    done
    [ "$(field $transport hosts)" = '"hosts": ["hdl", "hdr"]' ] || say "hosts: $(field $transport hosts)"
    has "$transport between hosts" $transport/run.json "tcp"
done

# clocks NAME SECONDS: the right host's clock is SECONDS ahead; the ranks there print the correction and
# its error bound; the times of the run are consistent.
clocks() {
    grep -oE '"rank": [23], "first_seconds": [^}]*' "$1/run.json" | tr -d '",:' | awk -v ahead="$2" '
        function off(seconds) { return seconds + ahead < 0 ? -seconds - ahead : seconds + ahead }
        off($4) > $8 || off($6) > $8 || $8 <= 0 || $8 > 10 { is_bad = 1 }
        END { exit NR != 2 || is_bad }' || say "$1: clocks: $(grep -oE '"clocks": \[[^]]*\]' "$1/run.json")"
    grep -oE '"bubble": \{[^}]*\}|"transfer_seconds": [-+.0-9e]+' "$1/run.json" | tr -d '{}",:' | awk '
        /^bubble/ { bubble = $NF }
        /^transfer/ && ($2 < 0 || $2 > 100) { is_bad = 1 }
        END { exit !(bubble > 0 && bubble < 1) || is_bad }' || say "$1: times: $(field "$1" bubble)"
}
clocks ucx_tag 0
clocks ucx_put 0
if unshare --time --monotonic 1000 --fork true 2>/dev/null; then
    later="--time --monotonic 1000"
    # shellcheck disable=SC2086
    start later $model transport.name=ucx_tag
    ends later 0
    later=""
    [ "$(field later losses)" = "$(field forked losses)" ] || say "another clock, other losses"
    clocks later 1000
    grep -oE '"ph": "X", "pid": [0-9]+, "tid": [0-9]+, "name": "[^"]*", "cat": "[a-z_]*", "ts": [0-9.]+' later/trace.json |
        awk '$NF > 1e9 { is_bad = 1 } END { exit NR == 0 || is_bad }' || say "later: the trace is on two clocks"
fi

# pair NAME WORDS...: one rank on each host, and one object from rank 0.
pair() {
    local name=$1 number host
    shift
    for number in 0 1; do
        host=$left
        [ $number -eq 1 ] && host=$right
        RANK=$number WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=10.213.77.1 MASTER_PORT=29501 \
            ip netns exec $host unshare --ipc --uts --pid --fork --kill-child --mount-proc \
            "$heddle" "$@" >"$name.$number.out" 2>&1 &
        echo $! >"$name.$number.pid"
    done
    for number in 0 1; do
        wait "$(cat "$name.$number.pid")"
        got=$?
        [ $got -eq "$code" ] || say "$name: rank $number exits with $got: $(head -c 600 "$name.$number.out")"
    done
}

code=0
for transport in ucx_tag ucx_put; do
    pair p2p_$transport bench p2p transport.name=$transport bench.sizes=8K bench.iterations=16 \
        transport.timeout_s=40 --json
    "$HD_BUILD_DIR/tests/json_check" p2p_$transport.0.out || say "bench p2p on two hosts is not one object"
    has "bench p2p on two hosts" p2p_$transport.0.out "\"transport\": \"$transport\", \"lane\": \"tcp"
    has "no memory is shared" p2p_$transport.0.out '"raw": null'
    has "all arrives" p2p_$transport.0.out '"wrong": 0'
    [ -s p2p_$transport.1.out ] && say "rank 1 speaks: $(head -c 300 p2p_$transport.1.out)"
done
pair skew bench skew transport.name=ucx_tag bench.sizes=64K bench.iterations=1 cost.tick_us=400 \
    transport.timeout_s=40 --json
has "bench skew on two hosts" skew.0.out '"transport": "ucx_tag", "lane": "tcp'
code=2
pair p2p_shm bench p2p transport.name=shm bench.sizes=8 bench.iterations=4
has "bench p2p with shm between hosts" p2p_shm.0.out "shm does not reach another host"

start shm $model transport.name=shm
ends shm 2
has "shm between hosts" shm.0.out "shm does not reach another host"

# --- what goes wrong between hosts ------------------------------------------------------------------
wait_for() { # FILE COUNT FRAGMENT: so many lines with it are there; a bound, for a machine that is stuck
    local turn
    for ((turn = 0; turn < 3000; turn++)); do
        [ "$(grep -cF -- "$3" "$1" 2>/dev/null)" -ge "$2" ] 2>/dev/null && return 0
        sleep 0.01
    done
    say "$1: $2 times '$3' never came"
}
link() { ip -n $left link set v$left "$1"; }
# Far above the deadline of 3 s and one more, far below that of a first step.
gone_in_time() { # NAME BEGIN
    [ $((SECONDS - $2)) -lt 60 ] || say "$1: not over after $((SECONDS - $2)) s"
}

for carrier in "ucx_tag" "ucx_put" "hook_fault transport.inner=ucx_put transport.hook_fault.delay_us=200"; do
    name=cut_${carrier%% *}
    # shellcheck disable=SC2086
    start $name $endless transport.timeout_s=3 transport.name=$carrier
    wait_for $name/metrics.jsonl 2 '"step"'
    link down
    begin=$SECONDS
    ends $name 5
    gone_in_time $name $begin
    link up
    has "a cut cable, seen from the left" $name.0.out "rank 2 has been silent for "
    has "a cut cable, seen from the left" $name.0.out "rank 2 on hdr sends nothing"
    has "a cut cable, seen from the right" $name.2.out "rank 0 has been silent for "
    has "a cut cable, seen from the right" $name.3.out "rank 0 on hdl sends nothing"
    has "a cut cable, in the file" $name/hang.json "rank 2 has been silent for "
done

# The process of a rank dies on the other host; unshare ends with it.
start far $endless transport.timeout_s=3 transport.name=ucx_put
wait_for far/metrics.jsonl 2 '"step"'
kill -KILL "$(cat far.2.pid)"
wait "$(cat far.2.pid)"
for number in 0 1 3; do
    wait "$(cat far.$number.pid)"
    got=$?
    [ $got -eq 5 ] || say "a death far away: rank $number exits with $got: $(head -c 600 far.$number.out)"
done
has "a death far away" far.0.out "rank 2 died at "
has "a death far away" far/hang.json "; its process on hdr is gone"

# A cable that is cut and restored before the deadline: the run is late, with the same bits.
long="train.steps=30 output.checkpoint_every=never output.trace=off"
# shellcheck disable=SC2086
"$heddle" run --overwrite $model $long output.directory=forked >forked.out 2>&1 || say "forked: $(cat forked.out)"
for inner in ucx_tag ucx_put; do
    # shellcheck disable=SC2086
    start mended_$inner $model $long transport.name=hook_fault transport.inner=$inner \
        transport.hook_fault.delay_us=4000 transport.timeout_s=60
    wait_for mended_$inner/metrics.jsonl 2 '"step"'
    link down
    wait_for mended_$inner.0.out 1 "rank 2 on hdr sends nothing"
    link up
    ends mended_$inner 0
    for key in losses grad_norms parameters_hash; do
        [ "$(field mended_$inner $key)" = "$(field forked $key)" ] ||
            say "mended, $inner: $key is $(field mended_$inner $key), forked $(field forked $key)"
    done
done

# The whole contract over the cable: the suite's even ranks on the left, its odd ones on the right.
for name in ucx_tag ucx_put; do
    "$heddle" conform $name --hosts $left:$right transport.$name.tls=tcp,self --bytes-max 256K >conform.out 2>conform.err ||
        say "conform $name on two hosts: $(cat conform.err) $(grep '^  fail' conform.out)"
    has "conform $name" conform.out "carrier tcp/v$left"
done
"$heddle" conform shm --hosts $left:nowhere >conform.out 2>conform.err
[ $? -eq 2 ] || say "conform on a host that is not there: exit $?"
has "conform on a host that is not there" conform.err "cannot open the network namespace 'nowhere'"

[ $failed -eq 0 ] && rm -rf "$work"
exit $failed
