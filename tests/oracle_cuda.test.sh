#!/usr/bin/env bash
# The one oracle on kernels cuda, emulated, over the stand-ins and all three device transports.
STANDIN=1 exec "$HD_SOURCE_DIR/tests/gpu_oracle_cuda.test.sh"
