# How the plugins of a GPU find CUDA, an object library: see cuda_library.h.  It needs the toolkit's
# headers to build, and nothing of CUDA to link: the libraries are found when a plugin is opened.
find_path(CUDA_INCLUDE_DIR cuda_runtime_api.h
          HINTS $ENV{CUDA_PATH}/include $ENV{CUDA_HOME}/include /usr/local/cuda/include)
if(CUDA_INCLUDE_DIR)
  add_library(hd_cuda OBJECT ${CMAKE_CURRENT_LIST_DIR}/cuda_library.c)
  target_include_directories(hd_cuda PUBLIC ${PROJECT_SOURCE_DIR}/core/include
                                            ${CMAKE_CURRENT_LIST_DIR})
  target_include_directories(hd_cuda SYSTEM PUBLIC ${CUDA_INCLUDE_DIR})
  target_link_libraries(hd_cuda PUBLIC hd_flags ${CMAKE_DL_LIBS})
  # What reaches cuBLASLt, for those that need it beside the runtime.
  if(EXISTS ${CUDA_INCLUDE_DIR}/cublasLt.h)
    add_library(hd_cublaslt OBJECT ${CMAKE_CURRENT_LIST_DIR}/cublaslt_library.c)
    target_include_directories(hd_cublaslt PUBLIC ${PROJECT_SOURCE_DIR}/core/include
                                                  ${CMAKE_CURRENT_LIST_DIR})
    target_include_directories(hd_cublaslt SYSTEM PUBLIC ${CUDA_INCLUDE_DIR})
    target_link_libraries(hd_cublaslt PUBLIC hd_flags ${CMAKE_DL_LIBS})
  endif()
else()
  message(STATUS "heddle: without plugins for CUDA: cuda_runtime_api.h is not installed")
endif()
