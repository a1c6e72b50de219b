# The op tables themselves, with no stage around them; the processor's where oneDNN is installed.
if(TARGET hd_cpu_ops)
  target_link_libraries(test_cpu_op_tables PRIVATE hd_reference_ops hd_cpu_ops)
  target_compile_definitions(test_cpu_op_tables PRIVATE HD_WITH_CPU)
endif()
