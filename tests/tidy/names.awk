# All C files of core, program, tools and plugins at once: prints "path:line: rule: what to do" for
#
#   static     a static function or file-scope variable that does not carry its file's name
#   two files  a function that two files define
#
# A static begins with the stem of its file, an end of that stem after an underscore, or the name of
# its folder; `one_f1b` stands for `1f1b`, since a C name cannot begin with a digit.  NAME.c and
# NAME_absent.c may define the same functions: CMake builds one of them.  Not checked: main, and
# functions whose name a macro makes (a template's body, which several files include).

function begins_with(name, prefix)
{
    sub(/^1f1b/, "one_f1b", prefix)
    return name == prefix || index(name, prefix "_") == 1
}

function carries_its_file(name,    parts, count, stem)
{
    count = split(FILENAME, parts, "/")
    if (begins_with(name, parts[count - 1])) {
        return 1
    }
    stem = parts[count]
    sub(/\.c$/, "", stem)
    while (!begins_with(name, stem)) {
        if (stem !~ /_/) {
            return 0
        }
        sub(/^[^_]*_/, "", stem)
    }
    return 1
}

# The name that a declaration at file scope declares: before its first ( [ = or ;
function declared(text)
{
    gsub(/__attribute__\(\([^()]*(\([^()]*\))?\)\)|_Alignas\([^()]*\)|_Thread_local/, "", text)
    if (match(text, /^[^(]*\(\*[a-zA-Z0-9_]+/)) {
        sub(/^[^(]*\(\*/, "", text)
    }
    sub(/[ \t]*[[(=;].*$/, "", text)
    sub(/^.*[^a-zA-Z0-9_]/, "", text)
    return text
}

FNR == 1 {
    signature = ""
    in_comment = 0
}

/^\/\*/ && !/\*\// { in_comment = 1 }
in_comment {
    if (/\*\//) {
        in_comment = 0
    }
    next
}

/^static / {
    name = declared($0)
    if (name != "" && !carries_its_file(name)) {
        printf "%s:%d: static: %s does not begin with the name of its file\n", FILENAME, FNR, name
    }
}

/^[a-zA-Z].*\(/ && !/^(typedef|struct [a-z0-9_]* {|enum|union)/ {
    signature = declared($0)
    signature_line = FNR
}
/^{/ && signature != "" && signature != "main" && signature ~ /[a-z]/ {
    file = FILENAME
    sub(/_absent\.c$/, ".c", file)
    if (signature in defined && file_of[signature] != file) {
        printf "%s:%d: two files: %s is also defined in %s\n", FILENAME, signature_line, signature,
               defined[signature]
    }
    defined[signature] = FILENAME
    file_of[signature] = file
    signature = ""
}
/;$|^}/ { signature = "" }
