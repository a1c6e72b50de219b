#!/usr/bin/env bash
# The kernel cuda is listed if it is built.  Without a driver a run with it exits 3 and names what is
# missing; a dry run needs no device.
set -uo pipefail

heddle=$HD_BUILD_DIR/bin/heddle
[ -e "$HD_PLUGIN_DIR/heddle_kernel_cuda.so" ] || { echo "the kernel cuda is not built: nvcc is not installed"; exit 77; }
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
cd "$world" || exit 1
failed=0
say() {
    echo "$*"
    failed=1
}

"$heddle" list kernel >out 2>err || say "list: exit $?"
grep -q '^kernel  *cuda ' out || say "heddle list does not show cuda: $(cat out)"

"$heddle" run --dry-run kernels.name=cuda pipeline.ranks=1 >out 2>err
[ $? -eq 0 ] || say "a dry run wants a device: $(cat err)"

"$heddle" run kernels.name=cuda kernel.cuda.cuda_runtime=./libnone.so pipeline.ranks=1 >out 2>err
[ $? -eq 3 ] || say "no runtime: exit is not 3"
grep -q 'libnone.so' err || say "no runtime: '$(cat err)' does not name the file"

if ! ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' && ldconfig -p 2>/dev/null | grep -q 'libcudart\.so\.13'; then
    "$heddle" run kernels.name=cuda pipeline.ranks=1 output.directory=run >out 2>err
    [ $? -eq 3 ] || say "no driver: exit is not 3"
    grep -q 'no NVIDIA driver' err || say "no driver: '$(cat err)' does not say so"
fi

standin=$HD_BUILD_DIR/tests/standin
# Over the stand-ins: MXFP8 of a dense feed-forward is the device's own from compute capability 10.0 on, has the
# bits of the emulated one there, and is refused below where it is asked for.
dense() { # DIRECTORY CAPABILITY WORDS...
    local directory=$1 capability=$2
    shift 2
    STANDIN_CUDA="compute=$capability" "$heddle" run kernels.name=cuda output.directory="$directory" "$@" \
        kernel.cuda.cuda_runtime="$standin/libheddle_standin_cuda.so" \
        kernel.cuda.cublaslt="$standin/libheddle_standin_cublaslt.so" pipeline.ranks=1 pipeline.microbatches=1 \
        model.layers=1 model.width=32 model.heads=2 model.experts=0 model.expert_width=32 model.sequence=32 \
        model.vocabulary=64 data.microbatch_size=1 kernels.precision=mxfp8 train.steps=1 output.trace=off >out 2>err
}
field() {
    grep -oE "\"$2\": (\"[0-9a-f]*\"|\[[^]]*\])" "$1/run.json"
}
dense native 100 kernel.cuda.mxfp8=native || say "native: exit $?: $(cat err)"
grep -q 'mxfp8, native where the device' err || say "native: the header is '$(head -n 1 err)'"
field native devices | grep -q 'MXFP8 native"' || say "native: $(field native devices)"
dense emulated 100 kernel.cuda.mxfp8=emulated || say "emulated: exit $?: $(cat err)"
field emulated devices | grep -q 'MXFP8 emulated in BF16"' || say "emulated: $(field emulated devices)"
for key in losses parameters_hash; do
    [ -n "$(field native $key)" ] && [ "$(field native $key)" = "$(field emulated $key)" ] ||
        say "$key: native $(field native $key), emulated $(field emulated $key)"
done
dense refused 90 kernel.cuda.mxfp8=native
[ $? -eq 3 ] || say "native below 10.0: exit is not 3: $(cat err)"
grep -q 'compute capability 10.0' err || say "native below 10.0: '$(cat err)' does not say what is missing"
exit $failed
