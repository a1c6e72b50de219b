#!/bin/sh
# tests/docs_laws.test.sh - runs the console blocks of docs/laws.md in every build; docs_console runs
# those of all pages in the release build.
set -u
page=docs/laws.md
"$HD_SOURCE_DIR/tests/docs_console.test.sh" $page || exit 1
commands=$(grep -c '^\$ heddle ' "$HD_SOURCE_DIR/$page")
if [ "$commands" -lt 9 ]; then
    echo "FAILED: only $commands commands in $page"
    exit 1
fi
