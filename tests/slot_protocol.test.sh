#!/bin/sh
# The slot protocols of the one-sided transports, checked by spin: they hold at depth 1, 2 and 3, that
# of shm in both flavours, and each of their mutations fails.  About 35 s on one free core.
set -eu
for tool in spin gcc; do
    if ! command -v "$tool" >/dev/null; then
        echo "skipped: $tool is not installed (apt-get install $tool)"
        exit 77
    fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sh "$HD_SOURCE_DIR/tests/model/check_slot_protocol.sh" "$work"
