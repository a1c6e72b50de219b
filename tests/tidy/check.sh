#!/usr/bin/env bash
# tests/tidy/check.sh ROOT [PLUGIN_DIR] - checks the rules of CONTRIBUTING.md.
#
# Prints "file:line: rule: what to do" for each line that breaks a rule, and exits 1 if there is one.
# ROOT holds core/, program/, tools/, plugins/, tests/, examples/, docs/ (missing ones are skipped).
# PLUGIN_DIR holds the built plugins; their exported symbols are checked.
#
# The rules are a ratchet: ROOT/tests/tidy/exceptions.txt has rows "FILE RULE COUNT" of what is
# tolerated.  One more is an error, and so is a row that tolerates more than there is.
set -uo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$1
plugin_dir=${2:-}
median_max=15

cd "$root" || exit 1
mapfile -t folders < <(for folder in core program tools plugins tests examples; do [ -d $folder ] && echo $folder; done)
mapfile -t sources < <(find "${folders[@]}" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) | sort)
mapfile -t scripts < <({
    find "${folders[@]}" cmake docs conf .ci -type f ! -name '*.[ch]' ! -name '*.cu' ! -name '*.cuh' \
        ! -path 'tests/golden/*' ! -name '*.npy'
    ls CMakeLists.txt CMakePresets.json README.md CONTRIBUTING.md dev
} 2>/dev/null | sort)

libraries=$(find plugins -name library.cmake -printf '%h ' 2>/dev/null)
source_rules() { # FILE [AWK_OPTION...]
    local file=$1
    shift
    awk -v path="$file" -v root="$root" -v libraries="$libraries" "$@" -f "$here/source.awk" "$file"
}

check_sources() {
    local file
    for file in "${sources[@]}"; do
        source_rules "$file"
    done
}

# Statics carry their file's name, and no two files define one function.
check_names() {
    find core program tools plugins -name '*.c' 2>/dev/null | sort | xargs -r awk -f "$here/names.awk"
}

# What comments and pages cite exists; pages wrap at 100 columns.  Frozen headers are not ours to mend.
check_pages() {
    local listing
    listing=$(mktemp)
    {
        find "${folders[@]}" docs conf cmake
        ls -- *.md LICENSE
    } >"$listing" 2>/dev/null
    printf '%s\n' "${sources[@]}" "${scripts[@]}" | grep -vE '^tests/fault/abi1[.]0/|[.]png$' |
        xargs -r awk -v listing="$listing" -f "$here/pages.awk"
    rm -f "$listing"
}

# Scripts and pages, like sources, hold no unfinished work and no path of one machine.
check_scripts() {
    local words='(^|[^A-Za-z])(TO''DO|FIX''ME|XX''X|HA''CK)([^A-Za-z]|$)'
    local paths='(^|[^A-Za-z0-9_.])/(ho''me|ro''ot|wo''rk|Us''ers)/'
    [ ${#scripts[@]} -gt 0 ] || return 0
    grep -HInE "$words" "${scripts[@]}" | sed -E 's/^([^:]*:[0-9]+):.*/\1: unfinished: do it, or file an issue/'
    grep -HInE "$paths" "${scripts[@]}" | sed -E 's/^([^:]*:[0-9]+):.*/\1: machine path: take it from the environment or the build/'
}

check_median() {
    local file
    for file in "${sources[@]}"; do
        [[ $file == tests/* ]] || source_rules "$file" -v lengths=1
    done | sort -n | awk -v most=$median_max '
        { rows[NR] = $1 }
        END {
            median = rows[int((NR + 1) / 2)]
            if (median > most) {
                printf "core:1: median: functions have %d lines, at most %d; split the long ones\n", median, most
            }
        }'
}

check_format() {
    if ! command -v clang-format >/dev/null; then
        echo "tidy: clang-format is not installed: the format was not checked" >&2
        return
    fi
    clang-format --dry-run --ferror-limit=0 "${sources[@]}" 2>&1 |
        sed -nE 's/^([^:]+:[0-9]+):[0-9]+: (warning|error): code should be clang-formatted.*/\1: format: run clang-format -i/p' |
        sort -t: -k1,1 -k2,2n -u
}

check_symbols() {
    local plugin names
    [ -n "$plugin_dir" ] || return 0
    for plugin in "$plugin_dir"/heddle_*.so; do
        # The address sanitizer adds a symbol for each exported object.
        names=$(nm -D --defined-only "$plugin" | awk '$NF !~ /^__odr_asan/ { print $NF }' | sort | paste -sd ' ')
        if [ "$names" != hd_plugin ]; then
            echo "${plugin##*/}:1: symbols: exports '$names'; a plugin exports hd_plugin and nothing else"
        fi
    done
}

# Drops what is tolerated, and prints a line for each row that tolerates more than there is.
ratchet() {
    local exceptions=tests/tidy/exceptions.txt
    [ -f $exceptions ] || exceptions=/dev/null
    awk -F': ' -v exceptions=$exceptions '
        BEGIN {
            while ((getline row < exceptions) > 0) {
                number++
                if (row !~ /^(#|$)/) {
                    split(row, part, " ")
                    key = part[1] " " part[2]
                    allowed[key] = part[3]
                    place[key] = exceptions ":" number
                }
            }
        }
        {
            file = $1
            sub(/:[0-9]+$/, "", file)
            rule = $2
            gsub(/ /, "-", rule)
            key = file " " rule
            seen[key]++
            lines[NR] = $0
            keys[NR] = key
        }
        END {
            for (i = 1; i <= NR; i++) {
                if (seen[keys[i]] > allowed[keys[i]]) {
                    print lines[i]
                }
            }
            for (key in allowed) {
                if (seen[key] < allowed[key]) {
                    printf "%s: ratchet: %s has only %d left; lower the row\n", place[key], key, seen[key]
                }
            }
        }'
}

found=$({ check_sources; check_names; check_pages; check_scripts; check_median; check_format; check_symbols; } | ratchet)
[ -z "$found" ] && exit 0
printf '%s\n' "$found"
exit 1
