#!/bin/sh
# tests/docs_laws.test.sh - replays the console blocks of docs/laws.md: what the page prints is what
# heddle prints.
set -u
work="$HD_BUILD_DIR/tests/docs_laws_work"
page="$HD_SOURCE_DIR/docs/laws.md"
PATH="$HD_BUILD_DIR/bin:$PATH"
export PATH
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1

awk '/^```console$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$page" >page.txt
grep '^\$ ' page.txt | while IFS= read -r line; do
    printf '%s\n' "$line"
    sh -c "${line#\$ }" 2>&1
done >replayed.txt

commands=$(grep -c '^\$ heddle ' page.txt)
if [ "$commands" -lt 9 ]; then
    echo "FAILED: only $commands commands in $page"
    exit 1
fi
diff page.txt replayed.txt && echo "$commands commands of docs/laws.md give what it says"
