# How the GPU plugins reach CUDA, an object library: see cuda_library.h.  It needs the toolkit's
# headers to build, but does not link CUDA: a plugin loads the libraries when it is opened.
find_path(CUDA_INCLUDE_DIR cuda_runtime_api.h
          HINTS $ENV{CUDA_PATH}/include $ENV{CUDA_HOME}/include /usr/local/cuda/include)
if(CUDA_INCLUDE_DIR)
  add_library(hd_cuda OBJECT ${CMAKE_CURRENT_LIST_DIR}/cuda_library.c)
  target_include_directories(hd_cuda PUBLIC ${PROJECT_SOURCE_DIR}/core/include
                                            ${CMAKE_CURRENT_LIST_DIR})
  target_include_directories(hd_cuda SYSTEM PUBLIC ${CUDA_INCLUDE_DIR})
  target_link_libraries(hd_cuda PUBLIC hd_flags ${CMAKE_DL_LIBS})
  # The same for cuBLASLt.
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
