#!/usr/bin/env bash
# `heddle conform kernel.cuda` on a real GPU: the contract's laws K1 to K8, in every way to compute.
# STANDIN=1 runs it over the stand-ins, kernels emulated: those checks that are short there, unless CHECKS says
# otherwise; CHECKS= is all of them, and takes minutes (docs/gpu.md).
set -uo pipefail
heddle=$HD_BUILD_DIR/bin/heddle
standin=$HD_BUILD_DIR/tests/standin
[ -e "$HD_PLUGIN_DIR/heddle_kernel_cuda.so" ] || { echo "skipped: the kernel cuda is not built: nvcc is not installed"; exit 77; }
checks=() options=()
if [ "${STANDIN:-}" = 1 ]; then
    options=(kernel.cuda.cuda_runtime="$standin/libheddle_standin_cuda.so" kernel.cuda.cublaslt="$standin/libheddle_standin_cublaslt.so")
    for check in ${CHECKS-device needs refusal tensors ordered stream write_once read_only evaluation norms garbage}; do
        checks+=(--check "$check")
    done
elif ! nvidia-smi --list-gpus 2>/dev/null | grep -q .; then
    echo "skipped: there is no NVIDIA driver on this machine, or no GPU (nvidia-smi)"
    exit 77
fi
out=$(mktemp)
trap 'rm -f "$out"' EXIT
"$heddle" conform kernel.cuda "${checks[@]}" "${options[@]}" | tee "$out"
code=${PIPESTATUS[0]}
[ "$code" -eq 0 ] || { echo "FAILED: exit $code"; exit 1; }
# Halves and gradient are asked of others: it has no split backward and serves no float32.
left=$(grep -E '^  skip' "$out" | grep -vE ' (halves|gradient) ')
[ -z "$left" ] || { echo "FAILED: left out: $left"; exit 1; }
