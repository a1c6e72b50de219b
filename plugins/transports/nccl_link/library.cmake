# What nccl and nccl_rma share, an object library: see nccl_link.h.  It needs NCCL's header to build,
# and nothing of NCCL to link: the library is found when a plugin is opened.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDA_INCLUDE_DIR} $ENV{NCCL_HOME}/include)
if(TARGET hd_cuda AND NCCL_INCLUDE_DIR)
  file(GLOB nccl_sources CONFIGURE_DEPENDS ${root}/nccl_link/*.c)
  add_library(hd_nccl OBJECT ${nccl_sources})
  target_include_directories(hd_nccl PUBLIC ${root}/nccl_link)
  target_include_directories(hd_nccl SYSTEM PUBLIC ${NCCL_INCLUDE_DIR})
  target_link_libraries(hd_nccl PUBLIC hd_cuda hd_books)
elseif(TARGET hd_cuda)
  message(STATUS "heddle: without nccl and nccl_rma: nccl.h is not installed")
endif()
