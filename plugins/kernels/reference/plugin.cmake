# -O3 lets the compiler vectorise across results; without fast-math it never reorders a sum.
target_compile_options(${target} PRIVATE -O3)
target_link_libraries(${target} PRIVATE hd_transformer m)
