#!/bin/sh
# tests/cases.test.sh - tests/cases.md is true: every public case has a row, every row names tests and
# rows that exist, or says why the case does not apply.
set -u
page="$HD_SOURCE_DIR/tests/cases.md"
work="$HD_BUILD_DIR/tests/cases_work"
# Numbers that the collection does not use.
unused="C03 C06 C09 C12 C15 C18 C21 C24 C27 C30 C33 C36 C39 C42 C45 C48 C51 \
C54 C57 C60 C63 C66 C69 C72 C75 C78 C81 C84 C87 C90 C93 C96"
rm -rf "$work"
mkdir -p "$work"

# check FILE: one line for each fault.
check() {
    awk -v tests="$HD_SOURCE_DIR/tests" -v unused="$unused" '
    function slurp(path,    text, line) {
        text = ""
        while ((getline line < path) > 0) {
            text = text line "\n"
        }
        close(path)
        gsub(/"[ \t]*\n[ \t]*"/, "", text) # one string over several lines
        return text
    }
    # The text of the tests that a cell names.
    function read_tests(id, cell,    name, text, all) {
        all = ""
        while (match(cell, /`[a-z0-9_]+`/)) {
            name = substr(cell, RSTART + 1, RLENGTH - 2)
            cell = substr(cell, RSTART + RLENGTH)
            text = slurp(tests "/" name ".c") slurp(tests "/" name ".test.sh")
            if (text == "") {
                print id ": there is no test " name
            }
            all = all text
        }
        return all
    }
    function check_quotes(id, cell, text,    quote) {
        while (match(cell, /"[^"]+"/)) {
            quote = substr(cell, RSTART + 1, RLENGTH - 2)
            cell = substr(cell, RSTART + RLENGTH)
            sub(/ \.\.\.$/, "", quote)
            if (text != "" && !index(text, quote)) {
                print id ": no row \"" quote "\" in the tests it names"
            }
        }
    }
    /^\| C[0-9][0-9] \|/ {
        id = substr($0, 3, 3)
        seen[id] = 1
        cell = $0
        sub(/^\|[^|]*\|[^|]*\|/, "", cell)
        sub(/ *\| *$/, "", cell)
        text = read_tests(id, cell)
        check_quotes(id, cell, text)
        if (text == "" && cell !~ /does not apply/) {
            print id ": neither a test nor a reason"
        }
        if (cell ~ /T[O]DO|TBD|FI[X]ME|X[X]X|\?\?/) {
            print id ": a placeholder"
        }
    }
    END {
        for (i = 1; i <= 97; i++) {
            id = sprintf("C%02d", i)
            if (!(id in seen) && !index(unused, id)) {
                print id ": no row"
            }
        }
    }' "$1"
}

cd "$work" || exit 1
failed=0
check "$page" >faults
if [ -s faults ]; then
    cat faults
    failed=1
fi

# expect_fault SED WORDS: the page changed by SED is reported.
expect_fault() {
    sed "$1" "$page" >spoiled.md
    check spoiled.md >faults
    grep -qF -- "$2" faults && return
    echo "FAILED: $1: the check does not say '$2': $(cat faults)"
    failed=1
}
expect_fault '/^| C68 /d' 'C68: no row'
expect_fault 's/^\(| C68 .*\)`test_corpus`/\1`test_corpse`/' 'C68: there is no test test_corpse'
expect_fault 's/^\(| C68 .*\)"a corpus shorter/\1"a corpus longer/' 'C68: no row "a corpus longer'
expect_fault 's/^| C68 .*/| C68 | x | later |/' 'C68: neither a test nor a reason'
expect_fault 's/^| C68 .*/| C68 | x | `test_corpus`, TBD |/' 'C68: a placeholder'

[ $failed -eq 0 ] && echo "every case has its test or its reason"
exit $failed
