#!/usr/bin/env bash
# `heddle bench` on device memory, over the stand-ins for CUDA and its libraries: words, rows, fields,
# relations between the numbers, and every refusal; never a speed: no number here is of a GPU.
set -uo pipefail
heddle=$HD_BUILD_DIR/bin/heddle
json=$HD_BUILD_DIR/tests/json_check
cuda=$HD_BUILD_DIR/tests/standin/libheddle_standin_cuda.so
nccl=$HD_BUILD_DIR/tests/standin/libheddle_standin_nccl.so
broken=$HD_BUILD_DIR/tests/fault/ipc/heddle_transport_cuda_ipc.so
[ -e "$HD_PLUGIN_DIR/heddle_transport_cuda_ipc.so" ] || {
    echo "skipped: CUDA's headers are not installed, so nothing of CUDA is built"
    exit 77
}
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS STANDIN_CUDA_FAULT STANDIN_NCCL_FAULT
cd "$world" || exit 1
export STANDIN_CUDA="devices=4" STANDIN_NCCL="serial=on" CUDA_DEVICE_MAX_CONNECTIONS=32
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

# bench CODE WORDS...: runs, keeps stdout in out and stderr in err, checks the exit code.
bench() {
    local code=$1 got
    shift
    timeout 100 "$heddle" bench "$@" >out 2>err
    got=$?
    [ $got -eq "$code" ] || say "heddle bench $*: exit $got, not $code: $(head -n 2 err)"
}

has() { # NAME FILE FRAGMENT
    grep -qF -- "$3" "$2" || say "$1: no '$3' in: $(head -c 1200 "$2")"
}

number() { # KEY [WHICH]: the value of a scalar member, in order of appearance
    grep -oE "\"$1\": (null|-?[0-9][-+.0-9e]*)" out | sed -n "${2:-1}p" | sed 's/.*: //'
}

holds() { # NAME EXPRESSION: awk says that it is true
    awk "BEGIN { exit !($2) }" || say "$1: $2"
}

of() { # TRANSPORT: its words
    echo "transport.name=$1 transport.$1.cuda_runtime=$cuda kernel.synthetic.cuda_runtime=$cuda transport.timeout_s=60"
    [ "$1" = cuda_ipc ] || echo "transport.$1.library=$nccl"
}

transports=cuda_ipc
[ -e "$HD_PLUGIN_DIR/heddle_transport_nccl.so" ] && transports="cuda_ipc nccl nccl_rma"

# --- p2p -----------------------------------------------------------------------------------------
# shellcheck disable=SC2046,SC2086 # lists of words
for name in $transports; do
    bench 0 p2p $(of $name) bench.sizes=1000:64000:x64 bench.iterations=15 --json
    "$json" out || say "p2p --json is not one object"
    has "the device is named, and what it is" out '"device": "synthetic: sleeps and fills patterns, cuda:0 (a stand-in, no GPU) by '
    has "its shape" out '"rows": [{"bytes": 1000, "window": 16, "round_trips_a_round": 3, "messages_a_round": 3'
    # Five rounds of three trips (bursts of 4, of each rank) and of 3 messages between two meetings of 2;
    # before them 16 trips (bursts of 16 and 2, of each rank), and 16 messages: 75 + 36 + 20.
    has "every message is counted, and is right" out '"copied_bytes": 1000, "messages": 131, "wrong": 0'
    has "of both sizes" out '"copied_bytes": 64000, "messages": 131, "wrong": 0'
    [ "$(grep -o '"latency_us": {[^}]*"count": 15}' out | wc -l)" -eq 4 ] || say "$name: latencies: $(cat out)"
    [ "$(grep -o '"gbytes": {[^}]*"count": 5}' out | wc -l)" -eq 4 ] || say "$name: rates: $(cat out)"
    grep -q '"raw"\|perftest\|bare' out && say "$name: yardsticks of the host stand beside a device"
    for which in 1 2; do
        at=$((2 * which))
        holds "the ratio is to the copy's" "$(number gbytes_ratio $which) * $(number median $at) / $(number median $((at - 1))) > 0.999 &&
            $(number gbytes_ratio $which) * $(number median $at) / $(number median $((at - 1))) < 1.001"
    done
    bench 0 p2p $(of $name) bench.sizes=8 bench.window=1 bench.direction=both bench.iterations=5
    has "text, both ways" out "bandwidth, both ways at once"
    has "the yardstick is named" out "copy: the yardstick"
    grep -qE "^ +8  $name +1 .* 0 of " out || say "$name: no row of 8 bytes: $(cat out)"
done

# --- skew ----------------------------------------------------------------------------------------
tiny="cost.tick_us=1000 bench.sizes=64K bench.iterations=1"
# shellcheck disable=SC2046,SC2086
for name in $transports; do
    bench 0 skew $(of $name) $tiny transport.progress_thread=on --json --svg late.svg
    "$json" out || say "skew --json is not one object"
    has "its shape" out '"stage_ms": 1, "bytes": 65536, "iterations": 1, "posted_early": false, "device": "synthetic: sleeps'
    has "one pass lasts a stage" out '(a stand-in, no GPU)'
    has "its compute" out '"passes": 1, "transports": [{"transport": "'$name'"'
    for ((point = 1; point <= 5; point++)); do
        # A pass of the synthetic kernel takes its time or longer; nothing else uses the device.
        holds "a pass takes its time" "$(number alone_ms $point) >= 1 && $(number compute_ms $point) >= 1"
        holds "the target reads after it has come" "$(number readable_ms $point) >= $(number arrival_ms $point)"
        holds "no wait is below nothing" "$(number source_wait_ms $point) >= 0 && $(number target_wait_ms $point) >= 0"
        [ "$(number stolen_ms $point)" = null ] || say "$name: $(number stolen_ms $point) ms are stolen from a device"
        # By awk, whose numbers are doubles: bash's are longer and round a tie differently.
        has "the figure" late.svg "$(awk "BEGIN { printf \"compute %.3f ms, alone %.3f\", $(number compute_ms $point), $(number alone_ms $point) }")"
    done
    has "the figure says where" late.svg "(a stand-in, no GPU)"
done
# shellcheck disable=SC2046,SC2086
{
    bench 0 skew $(of cuda_ipc) $tiny pipeline.overlap=on
    has "the engine's thread" out "1000 us"
    has "early" out "posts its receive before it is late"
    has "what computes" out "compute: 1 forward pass of one block, by marks of the device"
    IPC_BROKEN=signal_first bench 1 skew $(of cuda_ipc) transport.name="$broken" $tiny bench.iterations=8 bench.sizes=4M
    has "a wrong message ends it" err "messages arrived wrong"
    bench 2 skew $(of cuda_ipc) $tiny kernels.name=reference
    has "a kernel without a device" err "kernels.name: kernel reference computes in host memory"
}
# A stage of the kernel cuda, emulated.
# shellcheck disable=SC2046,SC2086
if [ -e "$HD_PLUGIN_DIR/heddle_kernel_cuda.so" ]; then
    model="model.width=32 model.heads=2 model.experts=2 model.experts_per_token=1 model.expert_width=32
        model.sequence=8 model.vocabulary=64 data.microbatch_size=1"
    stages="kernels.name=cuda kernel.cuda.cuda_runtime=$cuda kernel.cuda.cublaslt=$HD_BUILD_DIR/tests/standin/libheddle_standin_cublaslt.so"
    bench 0 skew $(of cuda_ipc) $tiny $stages $model transport.progress_thread=off --json
    has "the kernel cuda" out '"device": "cuda:0 (a stand-in, no GPU) sm_90'
    bench 3 skew $(of cuda_ipc) $tiny $stages kernel.cuda.cublaslt=./absent.so
    has "cuBLASLt is needed for comparison" err "./absent.so"

    # --- step: the part model on a device, and the products of a stage -----------------------------
    small="$model model.layers=2 model.key_value_heads=1 pipeline.microbatches=2 bench.iterations=1 bench.warmup=1"
    bench 0 step $stages $small --part model --part products --json
    "$json" out || say "step --json is not one object"
    has "the model's shape" out '"model": [{"ranks": 1, "devices": 1, "device": "cuda:0 (a stand-in, no GPU)'
    # 2 microbatches of 8 tokens; 2 blocks of 2 d d + 2 d 16 + d 8 + d 2 + 3 d 32, and 64 d, with d = 32; F and B.
    holds "the operations of a step" "$(number gflop_per_step) * 1e9 == 6 * 16 * (2 * (2048 + 1024 + 256 + 64 + 3072) + 2048)"
    ratio="$(number pass_tflops) / $(number ceiling_tflops) / $(number pass_mfu)"
    holds "MFU is of the ceiling" "$ratio > 0.999 && $ratio < 1.001"
    ratio="$(number step_tflops) * $(number median) * 1e3 / $(number gflop_per_step)"
    holds "the step's rate" "$ratio > 0.999 && $ratio < 1.001"
    ratio="$(number pass_tflops) * $(number compute_seconds) * 1e3 / $(number gflop_per_step)"
    holds "the passes' rate" "$ratio > 0.999 && $ratio < 1.001"
    for name in q,o k,v experts-up experts-down head; do
        for form in fprop dgrad wgrad; do
            has "each product in each form" out '"product": "'$name'", "form": "'$form'", "device": "cuda:0'
        done
    done
    has "experts have as many rows" out '"product": "experts-up", "form": "fprop", "device": "'
    grep -qE '"product": "experts-up", "form": "wgrad", [^}]*"experts": 2, "rows": 64, "columns": 32, "depth": 32' out ||
        say "the experts' weight gradient: $(grep -oE '"product": "experts-up", "form": "wgrad"[^}]*' out)"
    [ "$(grep -o '"product": "square"' out | wc -l)" -eq 2 ] || say "squares: $(cat out)"
    ratio="$(number tflops) / $(number cublaslt_tflops) / $(number ratio)"
    holds "the ratio is to cuBLASLt's" "$ratio > 0.999 && $ratio < 1.001"
    bench 0 step $stages $small model.experts=0 kernels.name=cuda --part products
    grep -qE '^up +wgrad +- +64 +32 +8 ' out || say "a dense stage: $(cat out)"
    has "the ceiling" out "square"
    bench 0 step $stages $small pipeline.ranks=2 $(of cuda_ipc) --part model
    grep -qE '^ +2 .* 2 x ' out || say "two ranks, two devices: $(cat out)"

    bench 2 step --part products
    has "of which kernel" err "kernels.name: the part products is for the kernel cuda, not for cpu: set kernels.name=cuda"
    bench 3 step $stages $small kernel.cuda.cuda_runtime=./absent.so --part products
    has "no runtime for the products" err "cuda: cannot load the CUDA runtime (./absent.so"
    bench 3 step $stages $small kernel.cuda.products=own --part products
    has "no yardstick" err "cuBLASLt is needed for comparison"
    STANDIN_CUBLASLT=algorithms=none bench 3 step $stages $small --part products
    has "no algorithm" err "cuBLASLt cannot compute the product q,o"
fi

# shellcheck disable=SC2046,SC2086
{
    # Both ranks on one GPU; two transports in the same rounds.
    STANDIN_CUDA=devices=1 bench 0 p2p $(of cuda_ipc) bench.sizes=4K bench.iterations=5
    has "one GPU" out "cuda_ipc/dev0"
    if [ "$transports" != cuda_ipc ]; then
        bench 0 p2p $(of cuda_ipc) $(of nccl) transport.name=cuda_ipc bench.against=nccl bench.sizes=4K bench.iterations=5
        has "both" out " 4096  nccl "
    fi
    # A signal that overtakes its copy: counted, after the tables.
    IPC_BROKEN=signal_first bench 1 p2p $(of cuda_ipc) transport.name="$broken" bench.sizes=256K bench.iterations=20
    has "wrong messages" err "messages of 262144 bytes arrived wrong"
    # A failure on the device ends the bench with its reason.
    STANDIN_CUDA_FAULT=cudaMemcpyAsync:60:async:700 bench 3 p2p $(of cuda_ipc) bench.sizes=4K bench.iterations=20
    has "the device's error" err "illegal memory access"
    STANDIN_CUDA_FAULT=cuStreamWriteValue64:20:hang bench 5 p2p $(of cuda_ipc) bench.sizes=4K bench.iterations=20 transport.timeout_s=1

    # --- refusals --------------------------------------------------------------------------------
    bench 3 p2p transport.name=cuda_ipc kernel.synthetic.cuda_runtime=./absent.so
    has "no runtime" err "cannot load the CUDA runtime (./absent.so"
    bench 3 p2p $(of cuda_ipc) transport.cuda_ipc.cuda_runtime=./absent.so bench.sizes=8
    has "no runtime for the transport" err "cuda_ipc: cannot load the CUDA runtime (./absent.so"
    STANDIN_CUDA=devices=0 bench 3 p2p $(of cuda_ipc) bench.sizes=8
    bench 2 p2p $(of cuda_ipc) kernels.name=reference
    has "a kernel without a device" err "kernels.name: kernel reference computes in host memory, and transport cuda_ipc cannot move that: set kernels.name=synthetic or kernels.name=cuda"
    bench 2 p2p $(of cuda_ipc) kernel.synthetic.memory=host
    has "its memory is the host's" err "kernel.synthetic.memory: kernel synthetic computes in host memory, and transport cuda_ipc cannot move that: set kernel.synthetic.memory=cuda"
    bench 2 p2p $(of cuda_ipc) bench.against=shm
    has "two kinds of memory" err "bench.against: one of cuda_ipc and shm moves host memory, the other device memory"
    if [ ! -e /proc/driver/nvidia/version ]; then
        bench 3 p2p transport.name=cuda_ipc bench.sizes=8
        grep -q 'NVIDIA driver\|cannot load the CUDA runtime' err || say "without a driver: $(cat err)"
    fi
}

# The script for a GPU has no fault of its own.
STANDIN=1 "$HD_SOURCE_DIR/tests/gpu_bench.test.sh" >out 2>&1 || say "gpu_bench over the stand-ins: $(grep FAILED out)"
exit $failed
