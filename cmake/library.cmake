# What nearly every file of the library includes, read once: the first library of a group, which has the same options,
# keeps it for all. Headers that do not change only, so that nothing compiles again for their sake. A file whose own options
# a compiler would not combine with it says SKIP_PRECOMPILE_HEADERS.
function(tessera_precompile name group)
  if(NOT TESSERA_PRECOMPILE)
    return()
  endif()
  get_property(owner GLOBAL PROPERTY tessera_precompiled_${group})
  if(owner)
    target_precompile_headers(${name} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${name} PRIVATE <fmt/format.h> <tl/expected.hpp> <algorithm> <array> <cstdint> <cstring>
                              <functional> <map> <memory> <optional> <set> <span> <string> <utility> <vector>)
    set_property(GLOBAL PROPERTY tessera_precompiled_${group} ${name})
  endif()
endfunction()

# tessera_together(NAME): lets a compiler read several of the target's files at a time (cmake/together.py), where
# TESSERA_TOGETHER asks for it: ON for tests and the program, ALL for libraries too, which nobody ships then. Tests compile
# in a third of the time, and one that is edited with its neighbours. A file with options of its own stays alone.
function(tessera_together name)
  if(NOT TESSERA_TOGETHER OR NOT Python3_Interpreter_FOUND)
    return()
  endif()
  get_target_property(sources ${name} SOURCES)
  set(alone)
  foreach(source ${sources})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    get_source_file_property(no_source ${source} HEADER_FILE_ONLY)
    if(options OR definitions OR no_source OR NOT EXISTS ${source})  # what is generated does not exist yet
      list(APPEND alone ${source})
      list(REMOVE_ITEM sources ${source})
    endif()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources} ${PROJECT_SOURCE_DIR}/cmake/together.py
                                         ${PROJECT_SOURCE_DIR}/cmake/grouping.py)
  set(together)
  if(sources)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/cmake/together.py --out
              ${CMAKE_CURRENT_BINARY_DIR}/${name}_together ${sources}
      OUTPUT_VARIABLE together COMMAND_ERROR_IS_FATAL ANY)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${name} PRIVATE -Wno-subobject-linkage)  # which takes what a group's file includes for headers
  endif()
  set_property(TARGET ${name} PROPERTY SOURCES ${alone} ${together})
endfunction()

# One library per folder: every .cc in it, and what it may link. The include rules are kept by cmake/layers.py.
# Folders of src/ are the parts of libtessera (cmake/package.cmake): position-independent, and hidden but for what
# public headers declare.
function(tessera_library name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;PRIVATE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PUBLIC ${ARG_PUBLIC} PRIVATE tessera_warnings ${ARG_PRIVATE})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                           VISIBILITY_INLINES_HIDDEN ON)
  set(group plain)
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/src/")
    # Which tells a fuzz program where it has been: in the folders that read bytes from outside.
    if(TESSERA_BUILD_FUZZ AND CMAKE_CURRENT_SOURCE_DIR MATCHES "/src/(base|io|contract|rows|plan|receipt|ledger|shard|lanes/xla/pjrt|lanes/xla/mosaic)$")
      target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
      set(group fuzzed)
    endif()
    set_property(GLOBAL APPEND PROPERTY tessera_parts ${name})
  endif()
  tessera_precompile(${name} ${group})
  if(TESSERA_TOGETHER STREQUAL ALL)  # once the folder has said everything of its files
    cmake_language(EVAL CODE "cmake_language(DEFER CALL tessera_together ${name})")
  endif()
endfunction()

# Where a file's own options do not go with the precompiled header (some compilers' -O1 does not, on some machines), the
# compiler reads the headers themselves: slower, and no reason to warn.
set(CMAKE_PCH_WARN_INVALID OFF)

# tessera_cold(NAME [FILE...]): a library, or these files of it, that a run comes through once: text, messages, files. At
# -O1 they compile in two thirds of the time.
function(tessera_cold name)
  if(TESSERA_TOGETHER STREQUAL ALL)
    # All of such a tree is compiled for one level.
  elseif(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# For code that takes longer to compile than to run: what it calls is optimised.
function(tessera_compile_quickly name)
  if(TESSERA_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)
  else()
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()

# GoogleTest and what tests include beside it, read once for all test programs at -O0 and once for the busy ones. A third
# of the time that a test takes to compile. Under a sanitizer, where nobody edits and builds again, our own headers too.
function(tessera_precompile_test name busy)
  set(owner tessera_test_headers)
  set(level -O0)
  if(busy)
    set(owner tessera_busy_test_headers)
    set(level $<$<CONFIG:Release>:-O1>)
  endif()
  if(NOT TARGET ${owner})
    set(ours)
    if(TESSERA_SANITIZE)
      set(ours <tessera/tessera.h>)
    endif()
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/${owner}.cc CONTENT "")
    add_library(${owner} OBJECT ${PROJECT_BINARY_DIR}/${owner}.cc)
    target_compile_options(${owner} PRIVATE ${level})
    target_link_libraries(${owner} PRIVATE tessera_base tessera_warnings GTest::gtest GTest::gmock)
    target_precompile_headers(${owner} PRIVATE <gtest/gtest.h> <gmock/gmock.h> <fmt/format.h> <tl/expected.hpp> <algorithm>
                              <functional> <map> <memory> <optional> <random> <string> <utility> <vector> ${ours})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${owner})
endfunction()

# One test program per folder of tests; its tests carry the folder's name as label. Each leaves its result as XML under
# test_results/, where script/requirements reads which numbers it proved. BUSY: it computes much itself, so that under a
# sanitizer too it runs faster by more than it compiles slower. Each of WHOLE names tests that share what is costly to
# make (compiled programs, a GPU's driver) and run together, as two halves of one filter, WITH variables of the
# environment.
function(tessera_test name)
  cmake_parse_arguments(ARG "BUSY" "" "LINK;WHOLE;WITH" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  if(NOT sources)
    return()
  endif()
  add_executable(${name} ${sources})
  tessera_together(${name})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests
                                             ${CMAKE_CURRENT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE TESSERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(ARG_BUSY)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  else()
    target_compile_options(${name} PRIVATE -O0)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_LINK} tessera_warnings GTest::gtest GTest::gmock GTest::gtest_main)
  if(TESSERA_PRECOMPILE)
    tessera_precompile_test(${name} ${ARG_BUSY})
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set(filter)
  if(ARG_WHOLE)
    list(JOIN ARG_WHOLE "*:*" wholes)
    set(filter TEST_FILTER "-*${wholes}*")
  endif()
  foreach(whole ${ARG_WHOLE})
    # What another name of the list has in it too is that one's: MeshTrainers are no Trainers.
    set(others ${ARG_WHOLE})
    list(FILTER others INCLUDE REGEX "${whole}")
    list(REMOVE_ITEM others ${whole})
    list(TRANSFORM others REPLACE "(.+)" "*\\1*")
    list(JOIN others ":" others)
    foreach(half 0 1)
      set(test ${name}_${whole}_${half})
      add_test(NAME ${test} COMMAND ${name} --gtest_brief=1 --gtest_filter=*${whole}*-${others}
                                    --gtest_output=xml:${PROJECT_BINARY_DIR}/test_results/${name}/${test}.xml)
      # Long, so they begin first: the last ones to begin should not be waited for by an idle core.
      set_tests_properties(${test} PROPERTIES TIMEOUT 900 COST 100 LABELS "${folder};${whole}" ENVIRONMENT
                                              "GTEST_TOTAL_SHARDS=2;GTEST_SHARD_INDEX=${half};${ARG_WITH}")
    endforeach()
  endforeach()
  gtest_discover_tests(
    ${name}
    DISCOVERY_TIMEOUT 120
    ${filter}
    XML_OUTPUT_DIR ${PROJECT_BINARY_DIR}/test_results/${name}
    PROPERTIES TIMEOUT 600 LABELS ${folder})
endfunction()

# tessera_embed(NAME HEADER NAMESPACE FILE...): the files' text as constants of the target, by cmake/embed.cmake.
function(tessera_embed name header namespace)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}_text.cc)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} "-DFILES=${ARGN}" -DHEADER=${header} -DNAMESPACE=${namespace} -DOUT=${source} -P
            ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    VERBATIM)
  target_sources(${name} PRIVATE ${source})
endfunction()
