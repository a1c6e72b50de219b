# The ops as a library: the plugin and the tests of its table are made of the same code, which needs
# nothing of CUDA.
set(cuda_ops table.c gemm.c ops_block.c ops_experts.c ops_head.c ops_optimizer.c)
list(TRANSFORM cuda_ops PREPEND ${folder}/)
add_library(hd_cuda_ops STATIC ${cuda_ops})
target_include_directories(hd_cuda_ops PUBLIC ${PROJECT_SOURCE_DIR}/core/include)
target_link_libraries(hd_cuda_ops PUBLIC hd_flags m)
set(HD_PLUGIN_SKIP "its side of the driver is not finished")
