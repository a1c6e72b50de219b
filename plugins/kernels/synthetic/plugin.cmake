target_link_libraries(${target} PRIVATE m)
# Passes in device memory need CUDA's headers; what it has without them is the host's memory.
if(TARGET hd_cuda)
  target_link_libraries(${target} PRIVATE hd_cuda)
  target_compile_definitions(${target} PRIVATE SYNTHETIC_HAS_CUDA)
endif()
