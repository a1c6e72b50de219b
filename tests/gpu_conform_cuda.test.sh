#!/usr/bin/env bash
# `heddle conform kernel.cuda` on a real GPU: the contract's laws K1 to K8, in every way to compute.
# STANDIN=1 runs it over the stand-ins with emulated kernels: only short checks, or those in CHECKS;
# CHECKS= runs all of them and takes minutes (docs/gpu.md).
set -uo pipefail
# shellcheck source=tests/support/gpu.sh
. "$HD_SOURCE_DIR/tests/support/gpu.sh"
need_kernel
take_gpus 1
checks=() options=()
if is_standin; then
    options=(kernel.cuda.cuda_runtime="$runtime" kernel.cuda.cublaslt="$products")
    for check in ${CHECKS-device needs refusal tensors ordered stream write_once read_only evaluation norms garbage}; do
        checks+=(--check "$check")
    done
fi
"$heddle" conform kernel.cuda "${checks[@]}" "${options[@]}" | tee out
code=${PIPESTATUS[0]}
[ "$code" -eq 0 ] || say "exit $code"
# Halves and gradient are checked on other kernels: this one has no split backward and no float32.
left=$(grep -E '^  skip' out | grep -vE ' (halves|gradient) ')
[ -z "$left" ] || say "left out: $left"
exit $failed
