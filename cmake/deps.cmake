# Third-party libraries, from the distribution's packages. All but fmt, oneTBB and GoogleTest are used as headers only; a
# cross build compiles fmt out of its headers, has plain threads in place of oneTBB and builds GoogleTest's source, so it
# needs no foreign-architecture packages.
find_package(Threads REQUIRED)

# A cross compiler must not search the host's /usr/include, where the host's C library lives too: it gets a folder of
# links to just the headers we name.
set(tessera_cross_headers ${PROJECT_BINARY_DIR}/third_party)

function(tessera_header_dep name header)
  find_path(${name}_INCLUDE ${header} REQUIRED)
  add_library(${name} INTERFACE)
  target_compile_definitions(${name} INTERFACE ${ARGN})
  if(CMAKE_CROSSCOMPILING)
    string(REGEX REPLACE "/.*" "" first_part ${header})
    file(MAKE_DIRECTORY ${tessera_cross_headers})
    file(CREATE_LINK ${${name}_INCLUDE}/${first_part} ${tessera_cross_headers}/${first_part} SYMBOLIC)
    target_include_directories(${name} SYSTEM INTERFACE ${tessera_cross_headers})
  else()
    target_include_directories(${name} SYSTEM INTERFACE ${${name}_INCLUDE})
  endif()
endfunction()

tessera_header_dep(tessera_expected tl/expected.hpp)
add_library(tl::expected ALIAS tessera_expected)
# As a library fmt costs a file that uses it less than a second to compile; as headers only, six.
if(CMAKE_CROSSCOMPILING)
  find_path(tessera_fmt_folder fmt/core.h REQUIRED)
  file(STRINGS ${tessera_fmt_folder}/fmt/core.h fmt_version REGEX "define FMT_VERSION 9[0-9][0-9][0-9][0-9]$")
  if(fmt_version)
    tessera_header_dep(tessera_fmt_headers fmt/format.h)
    add_library(tessera_fmt STATIC ${PROJECT_SOURCE_DIR}/cmake/fmt_library.cc)
    target_link_libraries(tessera_fmt PUBLIC tessera_fmt_headers)
    set_target_properties(tessera_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON)
  else()
    tessera_header_dep(tessera_fmt fmt/format.h FMT_HEADER_ONLY=1)
  endif()
else()
  find_package(fmt REQUIRED)
  add_library(tessera_fmt INTERFACE)
  target_link_libraries(tessera_fmt INTERFACE fmt::fmt)
endif()
tessera_header_dep(tessera_xxhash xxhash.h)
tessera_header_dep(tessera_json nlohmann/json.hpp)
tessera_header_dep(tessera_toml toml++/toml.h TOML_EXCEPTIONS=0)
tessera_header_dep(tessera_cli11 CLI/CLI.hpp)
# Highway's headers alone: the CPU lane asks the machine itself which instruction sets it has.
tessera_header_dep(tessera_hwy hwy/highway.h)

# simdjson reads JSONL. Without it, as in cross builds, the reader of all other JSON does, several times slower.
add_library(tessera_simdjson INTERFACE)
if(NOT CMAKE_CROSSCOMPILING)
  find_package(simdjson QUIET)
endif()
if(TARGET simdjson::simdjson)
  target_link_libraries(tessera_simdjson INTERFACE simdjson::simdjson)
  target_compile_definitions(tessera_simdjson INTERFACE TESSERA_HAS_SIMDJSON=1)
else()
  message(STATUS "JSONL: no simdjson here (Debian: libsimdjson-dev), so documents are read by nlohmann-json, which is slower")
endif()

# oneTBB's threads, or plain ones: in cross builds, which have no foreign libraries, and under the thread sanitizer,
# which cannot see into a library that was built without it.
add_library(tessera_threads INTERFACE)
target_link_libraries(tessera_threads INTERFACE Threads::Threads)
if(NOT CMAKE_CROSSCOMPILING AND NOT TESSERA_SANITIZE MATCHES "thread")
  find_package(TBB REQUIRED)
  target_link_libraries(tessera_threads INTERFACE TBB::tbb)
  target_compile_definitions(tessera_threads INTERFACE TESSERA_HAS_TBB=1)
endif()

# A compiler cache is used where there is one, and asked of nobody.
find_program(tessera_ccache ccache)
if(tessera_ccache AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${tessera_ccache})
  # It keeps nothing of files that use a precompiled header unless it is told that this is meant.
  execute_process(COMMAND ${tessera_ccache} --get-config sloppiness OUTPUT_VARIABLE sloppiness ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(TESSERA_PRECOMPILE AND NOT sloppiness MATCHES "pch_defines.*time_macros")
    string(REPLACE " " "" sloppiness "${sloppiness}")
    string(JOIN "," sloppiness ${sloppiness} pch_defines time_macros)
    list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=${sloppiness})
  endif()
endif()

if(TESSERA_BUILD_TESTS)
  # Debian ships GoogleTest's source: building it here gives it our sanitizer flags and works in cross builds.
  if(EXISTS /usr/src/googletest/CMakeLists.txt)
    set(INSTALL_GTEST OFF)
    add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
    target_compile_options(gtest PRIVATE -O0)  # which takes longer to compile than it saves
    foreach(name gtest gmock gtest_main)
      if(NOT TARGET GTest::${name})
        add_library(GTest::${name} ALIAS ${name})
      endif()
    endforeach()
  else()
    find_package(GTest REQUIRED)
  endif()
  include(GoogleTest)
endif()
