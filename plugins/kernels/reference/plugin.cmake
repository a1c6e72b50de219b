# The ops are a library, so that the plugin and the tests of its tables link the same objects.
# -O3 lets the compiler vectorise across results; without fast-math it never reorders a sum.
set(reference_ops ${sources})
list(REMOVE_ITEM reference_ops ${folder}/reference.c)
add_library(hd_reference_ops STATIC ${reference_ops})
target_include_directories(hd_reference_ops PUBLIC ${PROJECT_SOURCE_DIR}/core/include
                                                   ${folder}/../transformer)
target_link_libraries(hd_reference_ops PUBLIC hd_flags m)
target_compile_options(hd_reference_ops PRIVATE -O3)

set_target_properties(${target} PROPERTIES SOURCES ${folder}/reference.c)
target_compile_options(${target} PRIVATE -O3)
target_link_libraries(${target} PRIVATE hd_transformer hd_reference_ops)
