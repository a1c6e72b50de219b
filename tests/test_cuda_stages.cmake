# The stand-ins are those that the plugin loads: one file, so one instance.
if(TARGET hd_cuda_module)
  target_link_libraries(test_cuda_stages PRIVATE heddle_standin_cuda)
  target_compile_definitions(test_cuda_stages PRIVATE HD_WITH_CUDA_KERNEL)
  add_dependencies(test_cuda_stages heddle_kernel_cuda heddle_standin_cublaslt)
endif()
