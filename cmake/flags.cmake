# The language, the warnings and the numerics that every target of this project is built with.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# Asserts stay on in every build; no contraction and no fast-math, or the oracle would depend on
# the compiler (docs/architecture.md, "Numbers").
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
set(CMAKE_C_FLAGS_DEBUG "-Og -g3")

set(HD_SANITIZE "" CACHE STRING "sanitizers, as -fsanitize= takes them: address,undefined or thread")
option(HD_WERROR "treat warnings as errors; the presets, ./dev and CI turn it on" OFF)

add_library(hd_flags INTERFACE)
target_compile_definitions(hd_flags INTERFACE _GNU_SOURCE)
target_compile_options(hd_flags INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
                       -ffp-contract=off -fno-math-errno)
if(HD_WERROR)
  target_compile_options(hd_flags INTERFACE -Werror)
endif()
if(HD_SANITIZE)
  target_compile_options(hd_flags INTERFACE -fsanitize=${HD_SANITIZE} -fno-sanitize-recover=all
                         -fno-omit-frame-pointer)
  target_link_options(hd_flags INTERFACE -fsanitize=${HD_SANITIZE})
endif()
