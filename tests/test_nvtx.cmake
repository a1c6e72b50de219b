# The profiler that the test brings along; without NVTX's headers there are no ranges to hear.
if(NVTX_INCLUDE_DIR)
  add_library(nvtx_listener MODULE nvtx/listener.c)
  target_include_directories(nvtx_listener SYSTEM PRIVATE ${NVTX_INCLUDE_DIR})
  target_link_libraries(nvtx_listener PRIVATE hd_flags ${CMAKE_DL_LIBS})
  set_target_properties(nvtx_listener PROPERTIES PREFIX ""
                                                 LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_dependencies(test_nvtx nvtx_listener)
endif()
