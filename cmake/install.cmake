# bin/heddle, libexec/heddle (the yardsticks of bench), lib/heddle/abi1/*.so, include/heddle,
# lib/pkgconfig/heddle.pc, a CMake package, share/heddle/examples and share/doc/heddle.
install(TARGETS heddle RUNTIME DESTINATION bin)
foreach(yardstick heddle-gemm-rate heddle-quantiser-rate heddle-cuda-rate)
  if(TARGET ${yardstick})
    install(TARGETS ${yardstick} RUNTIME DESTINATION libexec/heddle)
  endif()
endforeach()
get_property(plugin_targets GLOBAL PROPERTY HD_PLUGIN_TARGETS)
install(TARGETS ${plugin_targets} LIBRARY DESTINATION ${HD_PLUGIN_DIR})
install(DIRECTORY core/include/heddle DESTINATION include)
install(DIRECTORY examples/ DESTINATION share/heddle/examples PATTERN "*.so" EXCLUDE)
install(DIRECTORY docs/ DESTINATION share/doc/heddle FILES_MATCHING PATTERN "*.md"
        PATTERN "*.png" PATTERN "*.svg")
configure_file(cmake/heddle.pc.in ${CMAKE_BINARY_DIR}/heddle.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/heddle.pc DESTINATION lib/pkgconfig)

add_library(heddle_sdk INTERFACE)
set_target_properties(heddle_sdk PROPERTIES EXPORT_NAME sdk)
target_include_directories(heddle_sdk INTERFACE $<INSTALL_INTERFACE:include>)
install(TARGETS heddle_sdk EXPORT heddle)
install(EXPORT heddle NAMESPACE heddle:: FILE heddle-config.cmake DESTINATION lib/cmake/heddle)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/heddle-config-version.cmake
                                 COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/heddle-config-version.cmake DESTINATION lib/cmake/heddle)
