#!/usr/bin/env bash
# tests/docs_console.test.sh [--bless] [PAGE...] - runs the console blocks of README.md and docs/*.md.
#
# In a block ```console each line "$ COMMAND" runs in a folder of the page's own, which has ./heddle,
# conf/, examples/ and the plugins of tests/fault.  The lines below it are the expected output: stdout
# and stderr, and "[N]" at the end if the exit code N is not 0.  A line "..." stands for any lines.
# Numbers that differ from run to run or machine to machine are masked.  A block that cannot run here
# says why in its first line: ```console skip: REASON.  --bless rewrites the pages with the real output.
set -uo pipefail
: "${HD_SOURCE_DIR:=$(cd "$(dirname "$0")/.." && pwd)}" "${HD_BUILD_DIR:=$HD_SOURCE_DIR/build/release}"
unset HEDDLE_PLUGIN_PATH HEDDLE_LOG NO_COLOR COLUMNS
export PATH=$HD_BUILD_DIR/bin:$PATH LC_ALL=C.UTF-8
work=$HD_BUILD_DIR/tests/docs_console_work.$$
trap 'rm -rf "$work"' EXIT
commands=0
skipped=0
failed=0

# Times, rates, dates, digests that depend on the processor, and paths.
mask() {
    sed -E -e 's/[0-9]+(\.[0-9]+)?( ?)(s|ms|us|ns|GB\/s|MB\/s|GFLOP\/s|TFLOP\/s)([^A-Za-z0-9]|$)/T\2\3\4/g' \
        -e 's/[0-9.]+k? tokens\/s/R tokens\/s/g; s/[0-9]+:[0-9]{2} left/T left/' \
        -e 's/[0-9]{8}-[0-9]{6}/DATE/g' \
        -e 's/(parameters|hash +) ?[0-9a-f]{16,64}/\1 DIGEST/; s/plan [0-9a-f]{12}/plan DIGEST/' \
        -e 's/(measured|exposed wait|loss) +[0-9]+\.[0-9]+/\1 N/g; s/-> [0-9.]+ nats/-> N nats/' \
        -e 's/[0-9]+ points?/N points/' \
        -e 's/^rank .*(; no rank moved for|, longer than T: continue) .*$/HANG, as noticed first/' \
        -e 's/^ +[0-9]+\.[0-9]{6} /T /; s/checksum [0-9a-f]+/checksum C/g' \
        -e 's/(pid|process) [0-9]+/\1 P/g' \
        -e "s#$HD_BUILD_DIR#BUILD#g; s#$work/[^/]*#FOLDER#g" \
        -e 's/  +/ /g'
}

# Whether the second text is the first, where a line "..." of the first stands for any lines.
matches() { # EXPECTED_FILE ACTUAL_FILE
    awk 'NR == FNR { expected[++count] = $0; next }
         { actual[++lines] = $0 }
         END {
             at = 1
             for (i = 1; i <= count; i++) {
                 if (expected[i] == "...") {
                     any = 1
                     continue
                 }
                 while (any && at <= lines && actual[at] != expected[i]) {
                     at++
                 }
                 if (at > lines || actual[at] != expected[i]) {
                     exit 1
                 }
                 any = 0
                 at++
             }
             exit any || at == lines + 1 ? 0 : 1
         }' "$1" "$2"
}

# Runs one command in the page's folder; prints the expected lines if they hold, else the real ones.
run_command() { # FOLDER COMMAND, expected lines on stdin
    local code
    cat >"$work/expected"
    (cd "$1" && timeout 120 bash -c "$2" 2>&1 </dev/null) >"$work/actual"
    code=$?
    [ $code = 0 ] || echo "[$code]" >>"$work/actual"
    mask <"$work/expected" >"$work/expected.masked"
    mask <"$work/actual" >"$work/actual.masked"
    if matches "$work/expected.masked" "$work/actual.masked"; then
        cat "$work/expected"
    else
        cat "$work/actual"
    fi
}

replay() { # PAGE FOLDER: the page as it should be, on stdout; counts in $work/counts
    local line command="" state=text ran=0 passed=0
    local -a expected=()
    finish() {
        if [ -n "$command" ]; then
            printf '%s\n' "${expected[@]}" | sed '1{/^$/d}' | run_command "$1" "$command"
            ran=$((ran + 1))
        fi
        command=""
        expected=()
    }
    while IFS= read -r line || [ -n "$line" ]; do
        case $state:$line in
        text:'```console skip: '*) state=skip passed=$((passed + 1)) ;;
        text:'```console') state=block ;;
        text:'```'*) state=other ;;
        block:'```') finish "$2" && state=text ;;
        skip:'```' | other:'```') state=text ;;
        block:'$ '*) finish "$2" && command=${line#\$ } ;;
        block:*) expected+=("$line") && continue ;;
        esac
        printf '%s\n' "$line"
    done <"$1"
    echo "$ran $passed" >"$work/counts"
}

bless=no
if [ "${1:-}" = --bless ]; then
    bless=yes
    shift
fi
cd "$HD_SOURCE_DIR" || exit 1
mkdir -p "$work"

# The script itself: a true page passes, a wrong line or exit code fails, and --bless mends both.
self_test() {
    local right=$work/right.md wrong=$work/wrong.md
    printf '```console\n$ printf "1\\n2\\n3 ms\\n"; exit 3\n1\n...\n9 ms\n[3]\n```\n' >"$right"
    printf '```console skip: no reason\n$ false\nno\n```\n```\n$ false\n```\n' >>"$right"
    "$0" "$right" >"$work/said" || { echo "a true page fails:" && cat "$work/said"; return 1; }
    printf '```console\n$ echo one\ntwo\n$ exit 4\n```\n' >"$wrong"
    "$0" "$wrong" >"$work/said" && { echo "a wrong page passes"; return 1; }
    grep -q '^+one$' "$work/said" && grep -q '^+\[4\]$' "$work/said" || { cat "$work/said"; return 1; }
    "$0" --bless "$wrong" >"$work/said" && "$0" "$wrong" >"$work/said" || { cat "$work/said"; return 1; }
}

if [ $# = 0 ]; then
    [ $bless = yes ] || self_test || failed=1
    set -- README.md CONTRIBUTING.md docs/*.md
fi
# A page that tells of processes and deadlines may be overtaken on a busy machine: it has three tries.
replay_fresh() { # PAGE: once, in a folder of its own
    local folder=$work/$(basename "$1" .md)
    rm -rf "$folder"
    mkdir "$folder"
    ln -s "$HD_BUILD_DIR/bin/heddle" "$HD_SOURCE_DIR/conf" "$folder"
    ln -s "$HD_BUILD_DIR"/tests/fault/heddle_*.so "$folder"
    cp -r "$HD_SOURCE_DIR/examples" "$folder"
    replay "$1" "$folder" >"$work/replayed"
}
for page; do
    for try in 1 2 3; do
        replay_fresh "$page"
        { [ $bless = yes ] || cmp -s "$page" "$work/replayed"; } && break
    done
    read -r ran passed <"$work/counts"
    commands=$((commands + ran))
    skipped=$((skipped + passed))
    cmp -s "$page" "$work/replayed" && continue
    if [ $bless = yes ]; then
        cp "$work/replayed" "$page"
        echo "$page: rewritten"
    else
        echo "$page prints (-) what heddle does not (+); tests/docs_console.test.sh --bless rewrites it:"
        diff -u "$page" "$work/replayed" | tail -n +3
        failed=1
    fi
done
echo "$commands commands ran, $skipped blocks were skipped"
[ $commands -gt 0 ] || failed=1
exit $failed
