# The op tables themselves, with no stage around them; the processor's where oneDNN is installed.
target_link_libraries(test_mxfp8 PRIVATE hd_reference_ops hd_cuda_emulated)
if(TARGET hd_cpu_ops)
  target_link_libraries(test_mxfp8 PRIVATE hd_cpu_ops)
  target_compile_definitions(test_mxfp8 PRIVATE HD_WITH_CPU)
endif()
