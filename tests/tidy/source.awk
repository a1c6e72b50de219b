# One C file against CONTRIBUTING.md; prints "path:line: rule: what to do", and with -v lengths=1 the
# length of every function instead.  Variables: path (as printed), root (where includes are looked
# up), libraries (folders that plugins share: those with library.cmake).  It relies on clang-format: a function's braces stand in column one.

BEGIN {
    line_max = 500
    if (path ~ /\.h$/ && path !~ /^core\/include\/heddle\//) { # a contract takes the room it needs
        line_max = 250
    }
    function_line_max = 70; column_max = 100; parameter_max = 5; member_max = 18
    # Floors of the house: a file includes only what lies below its own (docs/architecture.md).
    # Core ends with run; then come the program and the tools.
    split("base 1 config 2 registry 2 plan 2 engine 3 launch 3 train 3 run 4 " \
          "report 5 output 6 cli 7 drive 8 conform 9 bench 9", rows, " ")
    for (i = 1; rows[i] != ""; i += 2) {
        floor_of[rows[i]] = rows[i + 1]
    }
    split(path, parts, "/")
    own = parts[1] ~ /^(core|program|tools)$/ ? parts[2] : ""
    folder = path
    sub(/\/[^\/]*$/, "", folder)
    # Put together here, so that this file does not contain what it forbids.
    unfinished = "(^|[^A-Za-z])(TO" "DO|FIX" "ME|XX" "X|HA" "CK)([^A-Za-z]|$)"
    machine_path = "(^|[^A-Za-z0-9_.])/(ho" "me|ro" "ot|wo" "rk|Us" "ers)/"
    # A matrix product's m, n and k are the field's own words.
    poor_name = path ~ /^plugins\/kernels\// ? "sz|idx|mb|tmp" : "n|sz|idx|mb|tmp"
    poor_name = "(^|[^A-Za-z0-9_.>])(" poor_name ")([^A-Za-z0-9_]|$)"
    signature = ""
}

function report(line, rule, remedy)
{
    if (!lengths) {
        printf "%s:%d: %s: %s\n", path, line, rule, remedy
    }
}

# The line without comments, and with strings and characters emptied.
function code_of(text,    out, i, c, two, quote)
{
    out = ""
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        two = substr(text, i, 2)
        if (in_comment) {
            if (two == "*/") {
                in_comment = 0
                i++
            }
        } else if (two == "/*") {
            in_comment = 1
            i++
        } else if (two == "//") {
            break
        } else if (c == "\"" || c == "'") {
            quote = c
            out = out c
            for (i++; i <= length(text) && substr(text, i, 1) != quote; i++) {
                if (substr(text, i, 1) == "\\") {
                    i++
                }
            }
            out = out c
        } else {
            out = out c
        }
    }
    return out
}

# Parameters of the last parenthesised list of a signature.
function parameter_count(text,    i, c, depth, count)
{
    count = 1
    sub(/[^)]*$/, "", text)
    for (i = length(text); i > 0; i--) {
        c = substr(text, i, 1)
        depth += (c == ")") - (c == "(")
        if (depth == 0) {
            return count
        }
        count += c == "," && depth == 1
    }
    return 0
}

function exists(file,    line, found)
{
    found = (getline line < file) >= 0
    close(file)
    return found
}

# Whether a plugin's quoted include lies in its own folder, in a library of its kind, or in one of
# all kinds, which lies right under plugins/.
function is_within_reach(name,    count, i, all)
{
    if (exists(root "/" folder "/" name)) {
        return 1
    }
    count = split(libraries, all, " ")
    for (i = 1; i <= count; i++) {
        if ((index(all[i], parts[1] "/" parts[2] "/") == 1 || all[i] ~ /^plugins\/[^\/]*$/) &&
            exists(root "/" all[i] "/" name)) {
            return 1
        }
    }
    return 0
}

function check_include(text,    name, other)
{
    name = text
    sub(/^#[ \t]*include[ \t]*["<]/, "", name)
    sub(/[">].*$/, "", name)
    other = name
    sub(/\/.*$/, "", other)
    if (path ~ /^core\/include\//) {
        if (text ~ /"/) {
            report(NR, "include", "the SDK includes <heddle/...> and libc only, not \"" name "\"")
        }
    } else if (path ~ /^plugins\//) {
        if (other in floor_of || name ~ /^(cjson|nettle|CUnit)\// || name ~ /^ini\.h$/) {
            report(NR, "include", "a plugin includes <heddle/...>, libc and its device only, not " name)
        } else if (text ~ /"/ && !is_within_reach(name)) {
            report(NR, "include", name " lies neither beside this file nor in a library of its kind")
        }
    } else if (own in floor_of && other in floor_of && other != own &&
               floor_of[other] >= floor_of[own]) {
        report(NR, "include", parts[1] "/" own " includes only floors below it, not " name \
               "; pass what is needed as an argument")
    }
}

function end_function(    count)
{
    count = NR - signature_line + 1
    if (lengths) {
        print count
    }
    if (count > function_line_max) {
        report(signature_line, "function", count " lines, at most " function_line_max "; split it")
    }
    in_function = 0
    signature = ""
}

function check_signature(    count)
{
    count = parameter_count(signature)
    if (count > parameter_max) {
        report(signature_line, "parameters", count ", at most " parameter_max "; pass a struct")
    }
}

function track_functions(code)
{
    if (in_function) {
        if (code ~ /^}/) {
            end_function()
        }
    } else if (code ~ /^{/ && signature ~ /\)[^)]*$/) {
        check_signature()
        in_function = 1
    } else if (code ~ /^#/ || code ~ /[;}][ \t]*$/ || code ~ /^[ \t]*$/ || continued) {
        signature = ""
    } else {
        if (signature == "") {
            signature_line = NR
        }
        signature = signature code
    }
}

function track_ops(code)
{
    if (code ~ /^struct [a-z_]*ops {/) {
        ops_line = NR
        member_count = 0
    } else if (ops_line && code ~ /^};/) {
        if (member_count > member_max) {
            report(ops_line, "ops table", member_count " members, at most " member_max)
        }
        ops_line = 0
    } else if (ops_line && code ~ /\(\*[a-z0-9_]+\)\(/) {
        member_count++
    }
}

{
    code = code_of($0)
    if (length($0) > column_max) {
        report(NR, "columns", length($0) ", at most " column_max "; run clang-format")
    }
    if ($0 ~ unfinished) {
        report(NR, "unfinished", "do it, or file an issue")
    }
    if ($0 ~ machine_path) {
        report(NR, "machine path", "take it from the environment or the build")
    }
    if (code ~ poor_name && code !~ /^[ \t]*#/) {
        report(NR, "name", "say what it is: n, sz, idx, mb and tmp do not")
    }
    if ($0 ~ /^#[ \t]*include/ && !in_comment) {
        check_include($0)
    }
    track_functions(code)
    track_ops(code)
    continued = $0 ~ /\\$/
}

END {
    if (NR > line_max) {
        report(NR, "lines", NR ", at most " line_max "; split the file")
    }
}
