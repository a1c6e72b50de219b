#!/usr/bin/env bash
# tests/mutants/mutants.sh KIND [NUMBER...] - whether `heddle conform` finds mistakes in a plugin of KIND.
#
# tests/mutants/KIND.txt makes mutants of the plugin in examples/KIND, each by one change of one statement:
#
#   CHECK | FILE | the text to replace, which stands once in FILE | its replacement
#
# A mutant is killed when the check of that name fails; with CHECK "loading", when heddle refuses to
# load it (exit code 3).  A CHECK that begins with "survives:" says why the suite cannot find that
# mutant.  Prints the mutants that live, and exits 1 unless at least 95 in 100 are killed and every
# mutant does what its row says.  With NUMBERs only those rows run, with their output.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
kind=$1
shift
source=$(cd "$here/../../examples/$kind" && pwd)
heddle=$HD_BUILD_DIR/bin/heddle
world=$HD_BUILD_DIR/tests/mutants_$kind
list=$here/$kind.txt

rows() { # the rows that count, numbered from 1
    grep -vE '^(#|$)' "$list"
}

trimmed() { # TEXT: without the blanks around it
    local text=$1
    text=${text#"${text%%[![:space:]]*}"}
    printf '%s' "${text%"${text##*[![:space:]]}"}"
}

# mutate FILE FIND REPLACEMENT: changes the one place; says what is wrong with the row otherwise.
mutate() {
    local text rest
    text=$(sed -z 's/\n\(\n\)*[ \t]\+/ /g' "$1") # a statement is one line, however it is folded
    rest=${text#*"$2"}
    [ "$rest" != "$text" ] || { echo "'$2' is not in ${1##*/}"; return 1; }
    [ "${rest#*"$2"}" = "$rest" ] || { echo "'$2' stands more than once in ${1##*/}"; return 1; }
    printf '%s\n' "${text%%"$2"*}$3$rest" >"$1"
}

# one NUMBER: builds and judges a mutant; prints "NUMBER killed|alive|broken: ...".
one() {
    local number=$1 row check file find replacement folder said
    row=$(rows | sed -n "${number}p")
    IFS='|' read -r check file find replacement <<<"$row"
    check=$(trimmed "$check")
    file=$(trimmed "$file")
    find=$(trimmed "${find//¦/|}")
    replacement=$(trimmed "${replacement//¦/|}")
    folder=$world/$number
    rm -rf "$folder"
    cp -r "$source" "$folder"
    said=$(mutate "$folder/$file" "$find" "$replacement") || { echo "$number broken: $said"; return; }
    local includes=(-I "$HD_SOURCE_DIR/core/include")
    said=$("$HD_CC" -std=c17 -D_GNU_SOURCE -O1 -w "${includes[@]}" -fPIC -fvisibility=hidden -shared \
        -o "$folder/mutant.so" "$folder"/*.c -lm 2>&1) || { echo "$number broken: it does not compile: $said"; return; }
    local options=(--limit 10) code
    [ "$kind" != transport ] || options+=(transport.timeout_s=3)
    case $check in
    survives:* | loading) ;;
    *) options+=(--check "$check") ;;
    esac
    said=$("$heddle" conform "${options[@]}" "$folder/mutant.so" 2>&1)
    code=$?
    if { [ "$check" != loading ] && grep -q '^  fail ' <<<"$said"; } || { [ "$check" = loading ] && [ $code = 3 ]; }; then
        echo "$number killed${2:+: $said}"
    else
        echo "$number alive: $check: $find -> $replacement${2:+: $said}"
    fi
    rm -rf "$folder"
}

mkdir -p "$world"
if [ "${1:-}" = --one ]; then
    one "$2"
    exit 0
fi
if [ $# -gt 0 ]; then
    for number; do one "$number" aloud; done
    exit 0
fi
count=$(rows | wc -l)
seq "$count" | xargs -P "$(nproc)" -n 1 "$0" "$kind" --one >"$world/results.txt"
sort -n "$world/results.txt" | grep -v ' killed'
killed=$(grep -c ' killed' "$world/results.txt")
broken=$(grep -c ' broken' "$world/results.txt")
unexpected=$(grep ' alive' "$world/results.txt" | grep -vc ' alive: survives:')
surprising=0
for number in $(rows | grep -n '^survives:' | cut -d: -f1); do
    grep -q "^$number killed" "$world/results.txt" && { echo "$number is killed: its row says that it survives"; surprising=1; }
done
echo "$kind: $killed of $count mutants killed"
[ "$count" -ge 60 ] && [ "$broken" = 0 ] && [ "$unexpected" = 0 ] && [ "$surprising" = 0 ] &&
    [ $((killed * 100)) -ge $((count * 95)) ]
