# Build helpers: one static library per folder, one test binary per folder.
include_guard(GLOBAL)

add_library(lowbit_flags INTERFACE)
target_compile_features(lowbit_flags INTERFACE cxx_std_20)
target_include_directories(lowbit_flags INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# Float results are part of the interface: no contraction that the source does not spell out.
target_compile_options(lowbit_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-psabi -ffp-contract=off>)
if(LOWBIT_WERROR)
  target_compile_options(lowbit_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LOWBIT_SANITIZE)
  target_compile_options(lowbit_flags INTERFACE -fsanitize=${LOWBIT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined -O1)
  target_link_options(lowbit_flags INTERFACE -fsanitize=${LOWBIT_SANITIZE})
endif()

# lowbit_library(NAME SOURCES a.cc ... [DEPS folder ...] [LIBS external ...])
# Makes static library lowbit_NAME. DEPS name folders of a lower level: this is the link graph of ARCHITECTURE.md.
function(lowbit_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(lowbit_${name} STATIC ${A_SOURCES})
  add_library(lowbit::${name} ALIAS lowbit_${name})
  target_link_libraries(lowbit_${name} PUBLIC lowbit_flags ${A_LIBS})
  foreach(dep IN LISTS A_DEPS)
    target_link_libraries(lowbit_${name} PUBLIC lowbit::${dep})
  endforeach()
endfunction()

# lowbit_isa_library(NAME ISA avx2 FLAGS -mavx2 ... SOURCES ...)
# Translation units for one instruction set. Every header with code opens `inline namespace LOWBIT_ISA`,
# so the linker can never hand such a copy to baseline code.
function(lowbit_isa_library name)
  cmake_parse_arguments(A "" "ISA" "FLAGS;SOURCES;DEPS" ${ARGN})
  lowbit_library(${name} SOURCES ${A_SOURCES} DEPS ${A_DEPS})
  target_compile_definitions(lowbit_${name} PRIVATE LOWBIT_ISA=${A_ISA})
  target_compile_options(lowbit_${name} PRIVATE -O3 ${A_FLAGS})
endfunction()

# lowbit_test(NAME SOURCES a_test.cc ... DEPS folder ...): GoogleTest binary bin/NAME, one CTest entry.
function(lowbit_test name)
  if(NOT LOWBIT_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE lowbit_flags ${A_LIBS} GTest::gtest_main)
  foreach(dep IN LISTS A_DEPS)
    target_link_libraries(${name} PRIVATE lowbit::${dep})
  endforeach()
  target_compile_definitions(${name} PRIVATE LOWBIT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LOWBIT_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
endfunction()
