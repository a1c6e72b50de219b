#!/bin/bash
# The suite of kernels on one whose memory is a device's (conform/mirror.h), and that of transports
# where a device has to be lent (drive/lent.h): over the stand-in for CUDA, and without any.
set -u

heddle=$HD_BUILD_DIR/bin/heddle
standin=$HD_BUILD_DIR/tests/standin/libheddle_standin_cuda.so
work=$HD_BUILD_DIR/tests/conform_device_work
failed=0

if [ ! -e "$standin" ] || [ ! -e "$HD_PLUGIN_DIR/heddle_transport_cuda_ipc.so" ]; then
    echo "skipped: CUDA's headers are not installed, so there is no stand-in"
    exit 77
fi
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1

# expect NAME CODE TEXT WORD...: exit code CODE, TEXT in the output
expect()
{
    local name=$1 code=$2 text=$3
    shift 3
    "$heddle" "$@" >out.txt 2>&1
    local got=$?
    if [ "$got" -ne "$code" ] || ! grep -q -- "$text" out.txt; then
        echo "FAILED: $name: exit $got, not $code, or without '$text'"
        cat out.txt
        failed=1
    fi
}

stage=(kernel.synthetic.model=on kernel.synthetic.cuda_runtime="$standin")
# All checks but `gradient`: a pattern is not the slope of a loss.
checks=()
for check in descriptor options device needs refusal tensors copies regions ordered frugal \
    repeatable splittable additive halves write_once read_only evaluation norms update stamp \
    garbage nan; do
    checks+=(--check "$check")
done
for memory in host cuda pinned; do
    expect "a kernel in $memory memory" 0 "22 passed, 0 failed, 0 skipped" \
        conform kernel.synthetic "${checks[@]}" "${stage[@]}" kernel.synthetic.memory=$memory
done
STANDIN_CUDA_FAULT=cudaLaunchHostFunc:20:hang expect "a pass that does not end" 1 \
    "1 of 1 checks failed: ordered" conform kernel.synthetic --check ordered "${stage[@]}" \
    kernel.synthetic.memory=cuda transport.timeout_s=1

for memory in cuda pinned; do
    expect "a stream in $memory memory" 0 "1 passed, 0 failed, 0 skipped" \
        conform kernel.synthetic --check stream "${stage[@]}" kernel.synthetic.memory=$memory
done
expect "no stream" 0 "has no stream" conform kernel.synthetic --check stream "${stage[@]}"
STANDIN_CUDA_FAULT=cudaMemcpyAsync:1:hang expect "a copy that does not end" 1 \
    "waiting for the last mark returns HD_IN_PROGRESS" conform kernel.synthetic --check stream \
    "${stage[@]}" kernel.synthetic.memory=cuda transport.timeout_s=1

lent=(kernel.synthetic.cuda_runtime="$standin" transport.cuda_ipc.cuda_runtime="$standin")
expect "slots on a device" 0 "3 passed, 0 failed, 0 skipped" \
    conform cuda_ipc --check arrival --check visible --check lease "${lent[@]}"
expect "the same by name" 0 "1 passed" \
    conform cuda_ipc --with synthetic --check pair "${lent[@]}"
expect "no device to lend" 0 "no device for the slots" \
    conform cuda_ipc --check order kernel.synthetic.cuda_runtime=/no/such/file.so
expect "a lender without a stream" 0 "has no stream" \
    conform cuda_ipc --with synthetic --check order kernel.synthetic.memory=host
expect "a lender that is not there" 3 "^command line: --with: there is no kernel nothing" \
    conform cuda_ipc --with nothing
expect "nor what a hook wraps" 3 "^command line: transport.inner: there is no transport nothing" \
    conform hook_fault transport.inner=nothing
expect "a device lent to what cannot use it" 2 "moves host memory" conform shm --with synthetic
exit $failed
