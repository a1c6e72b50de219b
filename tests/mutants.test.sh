#!/usr/bin/env bash
# heddle conform finds the mistakes of tests/mutants in the example plugins: tests/mutants/mutants.sh.
set -uo pipefail
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG
failed=0

for kind in schedule transport kernel; do
    bash "$HD_SOURCE_DIR/tests/mutants/mutants.sh" "$kind" || failed=1
done
exit $failed
