target_link_libraries(${target} PRIVATE hd_books)
