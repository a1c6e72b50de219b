#!/usr/bin/env bash
# A plugin is built from an installation alone, by make and by CMake, and works there.
set -uo pipefail

world=$(mktemp -d)
trap 'rm -rf "$world"' EXIT
prefix=$world/prefix
name=heddle_schedule_eager_1f1b.so

fail() {
    echo "out_of_tree: $*"
    exit 1
}

cmake --install "$HD_BUILD_DIR" --prefix "$prefix" >"$world/install.log" || fail "the installation fails"
for file in bin/heddle lib/heddle/abi1/heddle_schedule_1f1b.so include/heddle/plugin.h \
    lib/pkgconfig/heddle.pc lib/cmake/heddle/heddle-config.cmake; do
    [ -e "$prefix/$file" ] || fail "no $file in the installation"
done

# A copy, so that no header of the source tree can be included.
cp -r "$prefix/share/heddle/examples/schedule" "$world/example"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
make -C "$world/example" CC="$HD_CC" CFLAGS="-O2 -Wall -Wextra -Wpedantic -Wconversion -Werror" ||
    fail "the example cannot be made"
cmake -S "$world/example" -B "$world/cmake" -DCMAKE_C_COMPILER="$HD_CC" \
    -DCMAKE_PREFIX_PATH="$prefix" >"$world/cmake.log" 2>&1 && cmake --build "$world/cmake" ||
    { cat "$world/cmake.log"; fail "the example cannot be built with CMake"; }

inspect() { # FILE
    "$prefix/bin/heddle" inspect "$1" >"$world/inspect.txt" || fail "inspect refuses $1"
    grep -q 'eager-1F1B' "$world/inspect.txt" || fail "inspect does not say what $1 is"
}
# The numbers that the opening comment of the example promises: P = 4, m = 8.
plan() { # SCHEDULE WANTED [OVERRIDE_OR_OPTION...]
    local schedule=$1 wanted=$2
    shift 2
    "$prefix/bin/heddle" plan --json pipeline.schedule="$schedule" pipeline.ranks=4 \
        pipeline.microbatches=8 "$@" >"$world/plan.json" || { cat "$world/plan.json"; fail "$schedule is not planned"; }
    tr -d ' \n' <"$world/plan.json" | grep -qF -- "$wanted" || fail "the plan of $schedule $* has no $wanted"
}
for folder in example cmake; do
    inspect "$world/$folder/$name"
    plan "$world/$folder/$name" '"ticks":33,'
    plan "$world/$folder/$name" '"peak_copies":[7,5,3,1]'
    plan "$world/$folder/$name" '"ticks":39,' --timeline costed cost.transfer=1
done

# The transport of examples/transport: judged by every check, and the bits of a run are those of shm.
cp -r "$prefix/share/heddle/examples/transport" "$world/transport"
tcp=$world/transport/heddle_transport_plain_tcp.so
make -C "$world/transport" CC="$HD_CC" CFLAGS="-O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror" ||
    fail "the transport cannot be made"
cmake -S "$world/transport" -B "$world/transport_cmake" -DCMAKE_C_COMPILER="$HD_CC" \
    -DCMAKE_PREFIX_PATH="$prefix" >"$world/cmake.log" 2>&1 && cmake --build "$world/transport_cmake" ||
    { cat "$world/cmake.log"; fail "the transport cannot be built with CMake"; }
"$prefix/bin/heddle" conform --level speed "$tcp" >"$world/conform.txt" ||
    { cat "$world/conform.txt"; fail "the transport is not conformant"; }
grep -q ' 0 failed' "$world/conform.txt" || fail "conform does not say that nothing failed"
parameters() { # TRANSPORT
    "$prefix/bin/heddle" run --json --plugin-dir "$world/transport" transport.name="$1" kernels.name=reference \
        model.layers=4 model.width=32 model.heads=2 model.sequence=16 model.expert_width=32 data.microbatch_size=1 \
        pipeline.schedule=interleaved_1f1b pipeline.ranks=2 pipeline.microbatches=4 train.steps=3 \
        train.warmup_steps=1 output.directory="$world/run_$1" --overwrite >"$world/run.json" || fail "no run over $1"
    grep -o '"parameters_hash": *"[0-9a-f]*"' "$world/run.json"
}
[ -n "$(parameters shm)" ] || fail "a run says nothing of its parameters"
[ "$(parameters shm)" = "$(parameters plain_tcp)" ] || fail "over plain_tcp the parameters are others"

# The kernel of examples/kernel: judged by every check, and the parameters are the same by any schedule.
cp -r "$prefix/share/heddle/examples/kernel" "$world/kernel"
mlp=$world/kernel/heddle_kernel_tiny_mlp.so
make -C "$world/kernel" CC="$HD_CC" CFLAGS="-O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror" ||
    fail "the kernel cannot be made"
cmake -S "$world/kernel" -B "$world/kernel_cmake" -DCMAKE_C_COMPILER="$HD_CC" \
    -DCMAKE_PREFIX_PATH="$prefix" >"$world/cmake.log" 2>&1 && cmake --build "$world/kernel_cmake" ||
    { cat "$world/cmake.log"; fail "the kernel cannot be built with CMake"; }
"$prefix/bin/heddle" conform "$mlp" >"$world/conform.txt" ||
    { cat "$world/conform.txt"; fail "the kernel is not conformant"; }
grep -q '^22 passed, 0 failed, 2 skipped' "$world/conform.txt" ||
    { cat "$world/conform.txt"; fail "22 checks of the kernel do not pass"; }
trained() { # SCHEDULE
    "$prefix/bin/heddle" run --json --plugin-dir "$world/kernel" kernels.name=tiny_mlp kernels.precision=f32 \
        model.experts=0 model.layers=4 model.width=32 model.heads=2 model.sequence=16 data.microbatch_size=1 \
        pipeline.schedule="$1" pipeline.ranks=2 pipeline.microbatches=4 train.steps=3 train.warmup_steps=1 \
        output.directory="$world/run_$1" --overwrite >"$world/run.json" ||
        { cat "$world/run.json"; fail "tiny_mlp does not train by $1"; }
    grep -o '"parameters_hash": *"[0-9a-f]*"' "$world/run.json"
}
[ -n "$(trained 1f1b)" ] || fail "a run of tiny_mlp says nothing of its parameters"
[ "$(trained 1f1b)" = "$(trained gpipe)" ] || fail "by gpipe the parameters of tiny_mlp are others"

# Installed beside the others, it is found by its name.
make -C "$world/example" CC="$HD_CC" install >/dev/null || fail "make install fails"
plan eager_1f1b '"ticks":33,'
plan 1f1b '"ticks":49,' --timeline costed cost.transfer=1 # what the example is compared with
