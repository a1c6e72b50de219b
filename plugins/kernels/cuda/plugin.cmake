# The ops are a library without CUDA, so that the plugin and the tests of its table link the same
# objects.
set(cuda_ops table.c gemm.c mxfp8.c ops_block.c ops_experts.c ops_head.c ops_optimizer.c)
list(TRANSFORM cuda_ops PREPEND ${folder}/)
add_library(hd_cuda_ops STATIC ${cuda_ops})
target_include_directories(hd_cuda_ops PUBLIC ${PROJECT_SOURCE_DIR}/core/include)
target_link_libraries(hd_cuda_ops PUBLIC hd_flags m)

find_program(CUDA_NVCC nvcc HINTS $ENV{CUDA_PATH}/bin $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
if(NOT CUDA_NVCC)
  set(HD_PLUGIN_SKIP "nvcc is not installed")
elseif(NOT TARGET hd_cublaslt)
  set(HD_PLUGIN_SKIP "cublasLt.h is not installed")
else()
  # Code for each architecture, and PTX for later ones.  It is embedded, so that no runtime of nvcc is
  # linked (docs/decisions).
  set(cuda_module ${CMAKE_BINARY_DIR}/generated/cuda_kernels.fatbin)
  file(GLOB cuda_kernels CONFIGURE_DEPENDS ${folder}/kernels/*)
  add_custom_command(OUTPUT ${cuda_module}
    COMMAND ${CUDA_NVCC} -std=c++17 -fatbin -I ${PROJECT_SOURCE_DIR}/core/include
            -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100
            -gencode arch=compute_90,code=compute_90 -o ${cuda_module} ${folder}/kernels/module.cu
    DEPENDS ${cuda_kernels} ${folder}/../transformer/ops.h ${folder}/../transformer/remote.h
    COMMENT "Compiling the module of heddle_kernel_cuda" VERBATIM)
  add_custom_target(hd_cuda_module DEPENDS ${cuda_module})

  # A library of its own, so that tests/test_gpu_ops.c runs the same code op by op.
  set(cuda_driver driver.c lt.c marks.c memory.c)
  list(TRANSFORM cuda_driver PREPEND ${folder}/)
  add_library(hd_cuda_driver OBJECT ${cuda_driver})
  set_source_files_properties(${folder}/driver.c PROPERTIES OBJECT_DEPENDS ${cuda_module}
    COMPILE_DEFINITIONS HD_CUDA_MODULE_FILE="${cuda_module}")
  target_include_directories(hd_cuda_driver PUBLIC ${folder})
  target_link_libraries(hd_cuda_driver PUBLIC hd_transformer hd_cuda_ops hd_cuda hd_cublaslt)
  add_dependencies(hd_cuda_driver hd_cuda_module)
  set_target_properties(${target} PROPERTIES SOURCES ${folder}/cuda.c)
  target_link_libraries(${target} PRIVATE hd_cuda_driver hd_transformer hd_cuda_ops hd_cuda hd_cublaslt)
endif()
