# What ucx_tag and ucx_put share, an object library: see ucx.h.  Without UCX neither is built.
pkg_check_modules(ucx IMPORTED_TARGET ucx)
if(ucx_FOUND)
  file(GLOB ucx_sources CONFIGURE_DEPENDS ${root}/ucx/*.c)
  add_library(hd_ucx OBJECT ${ucx_sources})
  target_include_directories(hd_ucx PUBLIC ${root}/ucx)
  target_link_libraries(hd_ucx PUBLIC hd_books PkgConfig::ucx)
endif()
