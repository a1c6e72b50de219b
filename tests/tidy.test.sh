#!/usr/bin/env bash
# The sources keep the rules of CONTRIBUTING.md, and the checker finds every broken rule at its line.
set -uo pipefail

check=$HD_SOURCE_DIR/tests/tidy/check.sh
world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
failed=0

# --- a small world with every rule broken once -------------------------------------------------
mkdir -p "$world"/core/{base,plan,engine,launch,run,include/heddle} "$world"/{tests/tidy,docs,so} \
    "$world"/plugins/{device,schedules,kernels/{one,transformer}} "$world"/{program/cli,tools/bench}
cd "$world" || exit 1
cp "$HD_SOURCE_DIR/.clang-format" .
repeat() { # COUNT LINE
    local i
    for ((i = 0; i < $1; i++)); do echo "$2"; done
}
function_of() { # NAME STATEMENT_COUNT
    printf 'int %s(int value)\n{\n' "$1"
    repeat "$2" '    value++;'
    printf '    return value;\n}\n'
}
repeat 501 '' >core/base/long_file.c
repeat 251 '' >core/base/long_file.h
function_of too_long 67 >core/base/long_function.c # 1 + 1 + 67 + 1 + 1 = 71 lines
{
    for name in just_right right_again and_again more_of_it many_more one_more last_one; do
        function_of $name 66
        [ $name = last_one ] || echo
    done
} >core/base/good.c
sed 's/^int /&good_/' core/base/good.c >core/base/good_too.c
printf '\nint six(int a, int b, int c, int d, int e, int f)\n{\n    return a + b + c + d + e + f;\n}\n' >core/base/many.c
printf 'int five(int a, int (*b)(int, int), int c, int d, int e)\n{\n    return a + b(c, d) + e;\n}\n' >core/base/five.c
printf '/* %s */\n' "$(repeat 1 "$(printf 'x%.0s' {1..99})")" >core/base/wide.c
printf 'int here;\n/* TO%s: later */\n' DO >core/base/unfinished.c
printf 'Set it in /ho%s/somebody/x.\n' me >docs/page.md
printf 'FIX%s\n' ME >docs/script.sh
printf 'const char *path = "/ro%s/x";\n' ot >core/base/path.c
printf 'int idx;\n/* n, mb and tmp in a comment, "n" in a string */\nconst char *text = "n mb tmp";\n' >core/base/name.c
printf 'int  unformatted;\n' >core/base/format.c
: >core/base/log.h
printf '#include "base/log.h"\n#include "engine/engine.h"\n' >core/plan/up.c
printf '#include "launch/launch.h"\n#include "engine/engine.h"\n#include "plan/plan.h"\n' >core/engine/sibling.c
printf '#include "plugin.h"\n#include <heddle/plugin.h>\n' >core/include/heddle/sdk.h
printf '#include <heddle/schedule.h>\n#include "base/log.h"\n#include <cjson/cJSON.h>\n#include <stdio.h>\n' >plugins/schedules/core.c
: >plugins/kernels/transformer/ops.h
: >plugins/kernels/transformer/library.cmake
: >plugins/kernels/one/own.h
printf '#include "own.h"\n#include "ops.h"\n#include "other.h"\n' >plugins/kernels/one/folder.c
: >plugins/device/every_kind.h
: >plugins/device/library.cmake
printf '#include "ops.h"\n#include "every_kind.h"\n' >plugins/schedules/other_kind.c
# Core includes neither the program nor the tools; the tools include both.
printf '#include "cli/cli.h"\n#include "bench/p2p.h"\n#include "base/log.h"\n' >core/run/on_top.c
printf '#include "cli/cli.h"\n#include "run/run.h"\n' >tools/bench/below.c
# A static carries its file's name, or an end of it, or its folder's; 1f1b is one_f1b.
cat >tools/bench/cmd_bench_two.c <<'END'
static int cmd_bench_two_first;
static const int two_second[] = {1};
static int bench_third(int (*call)(int))
{
    return call(cmd_bench_two_first + two_second[0]);
}

static int take(int value)
{
    return bench_third(0) + value;
}
END
printf 'static const int one_f1b_good = 1;\nstatic int f1b_bad = 1;\n' >plugins/schedules/1f1b.c
# One name, one function; NAME_absent.c stands for NAME.c, and each program has its main.
for file in core/launch/shared.c core/launch/shared_absent.c; do
    printf 'int hd_shared(void)\n{\n    return 1;\n}\n\nint main(void)\n{\n    return 0;\n}\n' >$file
done
printf 'int hd_shared(void);\n\nint hd_shared(void)\n{\n    return 2;\n}\n' >program/cli/again.c
# What a comment or a page cites exists: paths, links of a page, but not strings and placeholders.
cat >core/base/cites.c <<'END'
/* See docs/page.md, docs/gone.md and conf/x.ini; core/base/log.h and plugins/schedules/NAME.c. */
const char *text = "docs/string.md"; /* tests/gone.sh */
END
printf '[log](../core/base/log.h) [gone](gone.md#part) [web](https://one.example/x.md)\n' >docs/links.md
# A page wraps at 100 columns, except table rows and what a console shows; bytes are not columns.
{
    repeat 1 "$(printf 'x%.0s' {1..101})"
    repeat 1 "$(printf 'é%.0s' {1..100})"
    repeat 1 "| $(printf 'x%.0s' {1..101}) |"
    printf '```console\n%s\n```\n```\n%s\n```\n' "$(printf 'x%.0s' {1..101})" "$(printf 'x%.0s' {1..101})"
} >docs/wide.md
{
    echo 'struct big_ops {'
    repeat 19 '    int (*call)(int value);'
    printf '};\n\nstruct small_ops {\n'
    repeat 18 '    int (*call)(int value);'
    echo '};'
} >core/base/table.h
printf 'int mended;\n' >core/base/mended.c
printf '#include <stdint.h>\nint idx;\n' >core/base/tolerated.c
printf '# rows\ncore/base/mended.c name 1\ncore/base/tolerated.c name 1\n' >tests/tidy/exceptions.txt

# Three plugins: one is right, one exports more, one exports another symbol.
for row in 'good:hd_plugin = 1' 'two:hd_plugin = 1, more = 2' 'none:other = 1'; do
    echo "const int ${row#*:};" >"so/${row%%:*}.c"
    "$HD_CC" -shared -fPIC -o "so/heddle_schedule_${row%%:*}.so" "so/${row%%:*}.c" || exit 1
done

"$check" "$world" "$world/so" >found.txt 2>notes.txt && { echo "the broken world passes"; failed=1; }
cat >wanted.txt <<'EOF'
core/base/cites.c:1: cited page
core/base/cites.c:2: cited page
core/base/long_file.c:501: lines
core/base/long_file.h:251: lines
core/base/long_function.c:1: function
core/base/many.c:2: parameters
core/base/name.c:1: name
core/base/path.c:1: machine path
core/base/table.h:1: ops table
core/base/unfinished.c:2: unfinished
core/base/wide.c:1: columns
core/engine/sibling.c:1: include
core/include/heddle/sdk.h:1: include
core/plan/up.c:2: include
core/run/on_top.c:1: include
core/run/on_top.c:2: include
core:1: median
docs/links.md:1: cited page
docs/page.md:1: machine path
docs/script.sh:1: unfinished
docs/wide.md:1: columns
docs/wide.md:8: columns
heddle_schedule_none.so:1: symbols
heddle_schedule_two.so:1: symbols
plugins/kernels/one/folder.c:3: include
plugins/schedules/1f1b.c:2: static
plugins/schedules/core.c:2: include
plugins/schedules/core.c:3: include
plugins/schedules/other_kind.c:1: include
program/cli/again.c:3: two files
tests/tidy/exceptions.txt:2: ratchet
tools/bench/cmd_bench_two.c:8: static
EOF
if command -v clang-format >/dev/null; then
    echo 'core/base/format.c:1: format' >>wanted.txt
    # The empty lines of the long files break the format too; a wide comment does not.
    printf 'core/base/%s:1: format\n' long_file.c long_file.h >>wanted.txt
fi
cut -d: -f1-3 found.txt | LC_ALL=C sort >got.txt
LC_ALL=C sort -o wanted.txt wanted.txt
if ! diff wanted.txt got.txt >difference.txt; then
    echo "the checker found (>) other faults than the world has (<):"
    cat difference.txt
    failed=1
fi

# --- our own sources ----------------------------------------------------------------------------
"$check" "$HD_SOURCE_DIR" "$HD_PLUGIN_DIR" || failed=1
exit $failed
