target_link_libraries(${target} PRIVATE m)
# Passes in device memory need CUDA's headers; without them it has host memory only.
if(TARGET hd_cuda)
  target_link_libraries(${target} PRIVATE hd_cuda)
  target_compile_definitions(${target} PRIVATE SYNTHETIC_HAS_CUDA)
endif()
