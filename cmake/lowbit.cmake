# Build helpers: one static library per folder, one test binary per folder.
include_guard(GLOBAL)

# What every target of the project is compiled with. Nothing of it reaches programs that use an installed lowbit, but
# the include folder and the language standard.
add_library(lowbit_flags INTERFACE)
target_compile_features(lowbit_flags INTERFACE cxx_std_20)
target_include_directories(lowbit_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<INSTALL_INTERFACE:include>)
set(LOWBIT_LOOP_FLAGS -O3)  # of folders whose loops take the time
# Float results are part of the interface: no contraction that the source does not spell out.
# -Wrestrict: GCC 12 warns about "text" + std::string for nothing (its bug 105651). Clang counts the steps of constant
# expressions, and a format's tables are proved at compile time. -Wshadow: not where files are compiled together, as a
# local may be named like another file's constant.
set(LOWBIT_CXX_FLAGS -Wall -Wextra $<$<NOT:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wshadow> -Wnon-virtual-dtor -Wno-psabi $<IF:$<CXX_COMPILER_ID:Clang>,-fconstexpr-steps=100000000,-Wno-restrict>
    -ffp-contract=off)
if(LOWBIT_WERROR)
  list(APPEND LOWBIT_CXX_FLAGS -Werror)
endif()
# Sanitizers: little optimization, and of the debugger's data the lines alone, as instrumented code takes several times
# as long to compile.
if(LOWBIT_SANITIZE)
  set(LOWBIT_LOOP_FLAGS -O1)
  list(APPEND LOWBIT_CXX_FLAGS -fsanitize=${LOWBIT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined -O1 -g1)
  # Frames that GCC puts on the heap to find uses after return may be aligned to less than its vectors.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND LOWBIT_SANITIZE MATCHES address)
    list(APPEND LOWBIT_CXX_FLAGS --param=asan-use-after-return=0)
  endif()
  target_link_options(lowbit_flags INTERFACE $<BUILD_INTERFACE:-fsanitize=${LOWBIT_SANITIZE}>)
endif()
# scripts/check_hardening.py looks at what was built.
if(LOWBIT_HARDENING)
  include(CheckCXXCompilerFlag)
  foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection=full)
    string(MAKE_C_IDENTIFIER "LOWBIT_HAS${flag}" known)
    check_cxx_compiler_flag(${flag} ${known})
    if(${known})
      list(APPEND LOWBIT_CXX_FLAGS ${flag})
    endif()
  endforeach()
  if(NOT LOWBIT_SANITIZE)  # the sanitizers check the same calls, and FORTIFY wants an optimizer
    list(APPEND LOWBIT_CXX_FLAGS $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-U_FORTIFY_SOURCE$<SEMICOLON>-D_FORTIFY_SOURCE=2>)
  endif()
  target_link_options(lowbit_flags INTERFACE $<BUILD_INTERFACE:LINKER:-z,relro,-z,now,-z,noexecstack>)
  include(CheckPIESupported)
  check_pie_supported(LANGUAGES CXX)  # CMAKE_POSITION_INDEPENDENT_CODE then links programs as such
endif()
target_compile_options(lowbit_flags INTERFACE "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:${LOWBIT_CXX_FLAGS}>>")
install(TARGETS lowbit_flags EXPORT lowbit)

# lowbit_library(NAME SOURCES a.cc ... [DEPS folder ...] [LIBS external ...])
# Makes static library lowbit_NAME. DEPS name folders of a lower level: this is the link graph of ARCHITECTURE.md.
function(lowbit_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(lowbit_${name} STATIC ${A_SOURCES})
  add_library(lowbit::${name} ALIAS lowbit_${name})
  target_link_libraries(lowbit_${name} PUBLIC lowbit_flags ${A_LIBS})
  foreach(dep IN LISTS A_DEPS)
    target_link_libraries(lowbit_${name} PUBLIC lowbit_${dep})
  endforeach()
  set_target_properties(lowbit_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS lowbit_${name} EXPORT lowbit ARCHIVE DESTINATION lib)
endfunction()

# lowbit_compile_together(TARGET): six of its files are one for the compiler, which then reads their headers once. Not
# for hot loops: what is inlined into them must not depend on neighbours. A changed file is compiled with its
# neighbours; with LOWBIT_UNITY=OFF, alone. Names in anonymous namespaces must differ within a folder. What types of
# anonymous namespaces are in is not the main file here, about which GCC warns.
function(lowbit_compile_together target)
  if(LOWBIT_UNITY AND TARGET ${target})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# lowbit_isa_library(NAME ISA avx2 FLAGS -mavx2 ... SOURCES ...)
# Translation units for one instruction set. Every header with code opens `inline namespace LOWBIT_ISA`,
# so the linker can never hand such a copy to baseline code. Instrumented for fuzzing they would take minutes each to
# compile; tests run them under AddressSanitizer.
function(lowbit_isa_library name)
  cmake_parse_arguments(A "" "ISA" "FLAGS;SOURCES;DEPS" ${ARGN})
  lowbit_library(${name} SOURCES ${A_SOURCES} DEPS ${A_DEPS})
  target_compile_definitions(lowbit_${name} PRIVATE LOWBIT_ISA=${A_ISA})
  target_compile_options(lowbit_${name} PRIVATE "$<IF:$<BOOL:${LOWBIT_FUZZ}>,-O1;-fno-sanitize=all,${LOWBIT_LOOP_FLAGS}>" ${A_FLAGS})
endfunction()

# lowbit_test(NAME SOURCES a_test.cc ... DEPS folder ... [COST seconds]): GoogleTest binary bin/NAME, one CTest entry.
# COST of the long ones: CTest begins with them, so that none is left over at the end with a core idle beside it.
function(lowbit_test name)
  if(NOT LOWBIT_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "COST" "SOURCES;DEPS;LIBS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE lowbit_flags ${A_LIBS} GTest::gtest_main)
  # What they call is optimized as ever; a fifth of the compiler's time.
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/src/")
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  foreach(dep IN LISTS A_DEPS)
    target_link_libraries(${name} PRIVATE lowbit::${dep})
  endforeach()
  target_compile_definitions(${name} PRIVATE LOWBIT_SOURCE_DIR="${PROJECT_SOURCE_DIR}" LOWBIT_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900)
  if(A_COST)
    set_tests_properties(${name} PROPERTIES COST ${A_COST})
  endif()
endfunction()
