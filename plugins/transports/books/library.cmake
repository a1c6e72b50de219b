# The contract's books, an object library for every transport that has a peer: see books.h.
file(GLOB books_sources CONFIGURE_DEPENDS ${root}/books/*.c)
add_library(hd_books OBJECT ${books_sources})
target_include_directories(hd_books PUBLIC ${PROJECT_SOURCE_DIR}/core/include ${root}/books)
target_link_libraries(hd_books PUBLIC hd_flags)
