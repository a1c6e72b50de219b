# The plugin's own driver, and the plugin's open: cuda.c as it is.
if(TARGET hd_cuda_driver)
  target_sources(test_gpu_ops PRIVATE ${PROJECT_SOURCE_DIR}/plugins/kernels/cuda/cuda.c)
  target_link_libraries(test_gpu_ops PRIVATE hd_reference_ops hd_cuda_driver hd_transformer
                                             hd_cuda_ops hd_cuda hd_cublaslt)
  target_compile_definitions(test_gpu_ops PRIVATE HD_WITH_CUDA_KERNEL)
  add_dependencies(test_gpu_ops heddle_standin_cuda heddle_standin_cublaslt)
endif()
