# tests/support/gpu.sh - on what the gpu_*.test.sh run; they source it.
#
# This machine's GPUs, or with STANDIN=1 the stand-ins, so that the same lines run where there is no GPU.  Sets
#
#   heddle      the program
#   runtime     CUDA's runtime, library NCCL, products cuBLASLt
#   gpus        how many there are
#   world       an empty directory, which the script is in, and which goes with it
#   failed      what it exits with: say sets it
# shellcheck shell=bash disable=SC2034 # used by those who source it
heddle=$HD_BUILD_DIR/bin/heddle
failed=0

say() {
    echo "FAILED: $*"
    failed=1
}

skip() {
    echo "skipped: $*"
    exit 77
}

is_built() { # KIND_NAME
    [ -e "$HD_PLUGIN_DIR/heddle_$1.so" ]
}

need_kernel() {
    is_built kernel_cuda || skip "the kernel cuda is not built: nvcc is not installed"
}

is_standin() {
    [ "${STANDIN:-}" = 1 ]
}

# take_gpus COUNT: so many where they are stand-ins.
take_gpus() {
    local standin=$HD_BUILD_DIR/tests/standin
    if is_standin; then
        gpus=$1
        runtime=$standin/libheddle_standin_cuda.so
        library=$standin/libheddle_standin_nccl.so
        products=$standin/libheddle_standin_cublaslt.so
        export STANDIN_CUDA="devices=$1" STANDIN_NCCL="${STANDIN_NCCL-serial=on}"
    else
        gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
        [ "$gpus" -gt 0 ] || skip "there is no NVIDIA driver on this machine, or no GPU (nvidia-smi)"
        runtime=libcudart.so.13 library=libnccl.so.2 products=libcublasLt.so.13
    fi
    export CUDA_DEVICE_MAX_CONNECTIONS=32
    world=$(mktemp -d)
    trap 'rm -rf "$world"' EXIT
    cd "$world" || exit 1
}
