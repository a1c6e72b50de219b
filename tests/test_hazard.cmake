# The quantiser itself, beside the plugins that are loaded.
target_link_libraries(test_hazard PRIVATE hd_reference_ops)
