#!/usr/bin/env bash
# ./dev asks for the right packages and installs only those that are missing.  The system is
# simulated: every tool that dev calls is a script here that records its arguments.
set -uo pipefail

world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
mkdir -p "$world/tools" "$world/house/build/release/bin"
cp "$HD_SOURCE_DIR/dev" "$world/house/dev"
cd "$world/house" || exit 1
notes=$world/notes
failed=0

tool() { # NAME SCRIPT_TEXT
    printf '#!/bin/sh\necho "%s $*" >>"%s"\n%s\n' "$1" "$notes" "$2" >"$world/tools/$1"
    chmod +x "$world/tools/$1"
}
system_with() { # PACKAGE_PATTERN: installed; and USER_ID
    # shellcheck disable=SC2016 # the script's own words
    tool dpkg-query 'for package; do :; done; case $package in '"$1"') printf installed ;; *) exit 1 ;; esac'
    tool id "echo $2"
    : >"$notes"
}
tool apt-get ''
tool cmake ''
tool ctest 'echo "100% tests passed, 0 tests failed out of 1"'
tool sudo '"$@"'
# shellcheck disable=SC2016
tool bible 'echo; echo Genesis 1; echo; echo "  1 In the beginning God created the heaven and the earth."
            [ "$1" = gen1:1-rev22:21 ] && head -c ${BIBLE_BYTES:-4298000} /dev/zero | tr "\0" x'
cat >build/release/bin/heddle <<END
#!/bin/sh
echo "heddle \$*" >>"$notes"
END
chmod +x build/release/bin/heddle
export PATH=$world/tools:$PATH

expect() { # WHAT WANTED_CODE CODE
    [ "$2" = "$3" ] || { echo "$1: exit $3, wanted $2"; cat "$world/out"; failed=1; }
}
has() { # WHAT PATTERN FILE
    grep -qE -- "$2" "$3" || { echo "$1: no '$2' in:"; cat "$3"; failed=1; }
}
has_not() {
    ! grep -qE -- "$2" "$3" || { echo "$1: '$2' in:"; cat "$3"; failed=1; }
}
dev() {
    ./dev "$@" >"$world/out" 2>&1 </dev/null
}

system_with 'gcc|cmake' 0
dev build --no-install
expect "missing packages are only printed" 2 $?
has "missing packages are printed" '^missing packages: .*ninja-build' "$world/out"
has_not "what is there is not missing" 'missing packages: .*cmake' "$world/out"
has_not "a build needs no test package" 'libcunit1-dev|bible|spin' "$world/out"
has_not "nothing is installed" '^(apt-get|cmake) ' "$notes"

system_with 'gcc|cmake' 0
dev build
expect "a root's build" 0 $?
has "lists are updated" '^apt-get .*update' "$notes"
has "packages are installed by name" '^apt-get .*install .*--no-install-recommends .*ninja-build' "$notes"
has_not "root needs no sudo" '^sudo' "$notes"
has "the release preset is built" '^cmake --build --preset release' "$notes"
[ "$(readlink heddle)" = build/release/bin/heddle ] || { echo "no ./heddle"; failed=1; }

system_with 'gcc|cmake' 1000
dev build
expect "a user's build" 0 $?
has "a user installs with sudo" '^sudo .*apt-get .*install' "$notes"

system_with '*' 0
dev demo
expect "the demo" 0 $?
has_not "nothing is missing, nothing installed" '^apt-get' "$notes"
has "the text comes from the package" '^bible gen1:1-rev22:21' "$notes"
has "the demo runs on it" '^heddle run conf/demo.ini data.corpus=build/demo/kjv.txt' "$notes"
has "the demo says where to look" 'runs/latest .*metrics.jsonl' "$world/out"
: >"$notes"
dev demo
expect "the demo again" 0 $?
has_not "the text is made once" '^bible' "$notes"

rm -r build/demo
BIBLE_BYTES=1000 dev demo
expect "a text of the wrong size" 1 $?
has "and its size" 'bible printed [0-9]+ bytes' "$world/out"
[ ! -e build/demo/kjv.txt ] || { echo "a wrong text is kept"; failed=1; }

: >"$notes"
dev test
expect "the tests" 0 $?
tail -n 1 "$world/out" | grep -q '^100% tests passed' || { echo "ctest does not close"; failed=1; }
for preset in release clang asan tsan; do
    has "the $preset build is tested" "^ctest --test-dir build/$preset" "$notes"
done
has "every test runs in the release build" '^ctest --test-dir build/release --output-on-failure --no-tests=error -j [0-9]+$' "$notes"
# shellcheck disable=SC2016
tool ctest 'case $* in *asan*) exit 8 ;; esac'
dev test
expect "a part that fails" 1 $?
has "it is named" 'asan: failed' "$world/out"

system_with '*' 0
tool ctest ''
dev test '^test_laws$'
expect "one test" 0 $?
has "the release build is made" '^cmake --build --preset release' "$notes"
has "the one test runs" '^ctest --test-dir build/release .* -R \^test_laws\$$' "$notes"
has_not "no other build is tested" 'build/(asan|tsan|clang)' "$notes"

mkdir -p tests/tidy
printf '#!/bin/sh\nexit ${TIDY_CODE:-0}\n' >tests/tidy/check.sh
chmod +x tests/tidy/check.sh
system_with '*' 0
dev lint
expect "the style" 0 $?
has_not "the style needs no build" '^(cmake|ctest) ' "$notes"
TIDY_CODE=1 dev lint
expect "a broken style" 1 $?

dev
expect "no verb" 2 $?
has "and the usage is printed" 'test NAME  runs the tests' "$world/out"
has "to its last line" 'checks the style alone' "$world/out"
dev build test
expect "two verbs" 2 $?
dev test one two
expect "two names of tests" 2 $?
dev trian
expect "an unknown word" 2 $?
exit $failed
