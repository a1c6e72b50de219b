# The stage program, an object library that kernel plugins link: see transformer.h.
file(GLOB transformer_sources CONFIGURE_DEPENDS ${root}/transformer/*.c)
add_library(hd_transformer OBJECT ${transformer_sources})
target_include_directories(hd_transformer PUBLIC ${PROJECT_SOURCE_DIR}/core/include ${root}/transformer)
target_link_libraries(hd_transformer PUBLIC hd_flags)
