# Any text files at once: prints "path:line: rule: what to do" for
#
#   cited page  a path of the tree, or a relative link of a page, that does not exist
#   columns     a line of a page over 100 columns; table rows and console output cannot be wrapped
#
# Variables: listing, a file that names every file and folder of the tree, one a line.  Of C files
# and scripts only comments are read.  Placeholders are not citations: NAME, KIND, and a stem of one
# letter, as in conf/x.ini.

BEGIN {
    while ((getline line < listing) > 0) {
        exists[line] = 1
    }
    cited = "(^|[^A-Za-z0-9_./$}-])(core|program|tools|plugins|conf|docs|tests|cmake|examples)" \
            "/[A-Za-z0-9_./-]*[A-Za-z0-9_]\\.(md|ini|c|h|cu|cuh|sh|cmake|txt|awk|pml|py|csv|bin)"
    pages = "(^|[^A-Za-z0-9_./$}-])(README|CONTRIBUTING)\\.md"
}

function report(rule, remedy)
{
    printf "%s:%d: %s: %s\n", FILENAME, FNR, rule, remedy
}

function check(name)
{
    sub(/\/$/, "", name)
    if (!(name in exists) && !((FILENAME, FNR, name) in told) && name !~ /NAME|KIND|(^|\/)[a-z]\.[a-z]+$/) {
        told[FILENAME, FNR, name] = 1
        report("cited page", name " does not exist")
    }
}

# Takes ./ and ../ out of a path.
function resolved(name)
{
    gsub(/\/\.\//, "/", name)
    while (match(name, /(^|\/)[^\/.][^\/]*\/\.\.\//)) {
        name = substr(name, 1, RSTART - 1) (RSTART > 1 ? "/" : "") substr(name, RSTART + RLENGTH)
    }
    sub(/^\.\.\//, "", name)
    return name
}

function check_matches(text, pattern,    name)
{
    while (match(text, pattern)) {
        name = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        sub(/^[^A-Za-z]/, "", name)
        if (text !~ /^(\.?[A-Za-z0-9_]|\*)/) {
            check(name)
        }
    }
}

function check_links(text,    name, folder)
{
    folder = FILENAME
    if (!sub(/\/[^\/]*$/, "/", folder)) {
        folder = ""
    }
    while (match(text, /\]\([^()]*\)/)) {
        name = substr(text, RSTART + 2, RLENGTH - 3)
        text = substr(text, RSTART + RLENGTH)
        sub(/#.*$/, "", name)
        if (name != "" && name !~ /^[a-z]+:/) {
            check(resolved(folder name))
        }
    }
}

FNR == 1 {
    in_comment = fenced = 0
    is_page = FILENAME ~ /\.md$/
    is_code = FILENAME ~ /\.(c|h|cu|cuh)$/
    is_script = FILENAME ~ /\.(sh|awk)$|(^|\/)dev$/
}

is_code {
    comment = ""
    if (in_comment) {
        comment = $0
    } else if (match($0, /\/\*|\/\//)) {
        comment = substr($0, RSTART)
        in_comment = comment ~ /^\/\*/
    }
    if (comment ~ /\*\//) {
        in_comment = 0
    }
    check_matches(comment, cited)
    check_matches(comment, pages)
    next
}

is_script && !/^ *#/ { next }

{
    check_matches($0, cited)
    check_matches($0, pages)
}

is_page {
    check_links($0)
    if (/^```/) {
        fenced = fenced ? 0 : (/^```console/ ? "console" : "other")
    }
    text = $0
    gsub(/[\200-\277]/, "", text) # the second and later bytes of a character in UTF-8
    if (length(text) > 100 && text !~ /^\|/ && fenced != "console") {
        report("columns", length(text) ", at most 100; wrap the paragraph, or name the fence console")
    }
}
