# The contract's books, an object library for every transport that has a peer: see turn.h.
file(GLOB turn_sources CONFIGURE_DEPENDS ${root}/turn/*.c)
add_library(hd_turn OBJECT ${turn_sources})
target_include_directories(hd_turn PUBLIC ${PROJECT_SOURCE_DIR}/core/include ${root}/turn)
target_link_libraries(hd_turn PUBLIC hd_flags)
