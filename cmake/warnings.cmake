# Warnings are errors in our own builds, sanitizers come from one variable.
add_library(tessera_warnings INTERFACE)
target_compile_options(tessera_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                                  -Wnon-virtual-dtor)
set(tessera_werror)
if(TESSERA_WARNINGS_ARE_ERRORS)
  set(tessera_werror -Werror)
  target_compile_options(tessera_warnings INTERFACE ${tessera_werror})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # These come from the optimiser and see overlaps and overruns inside std::string where there are none, each version in
  # other places (GCC bug 105651 for one): shown, but no reason to stop somebody's build.
  foreach(warning restrict array-bounds stringop-overflow stringop-overread maybe-uninitialized)
    target_compile_options(tessera_warnings INTERFACE -Wno-error=${warning})
  endforeach()
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(tessera_warnings INTERFACE -Wno-dangling-reference)
  else()
    target_compile_options(tessera_warnings INTERFACE -Wno-restrict)
  endif()
endif()
if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
  if(TESSERA_SANITIZE MATCHES "address")
    # A program of fixed address starts in two thirds of the time: the data of every check has addresses in it.
    string(APPEND CMAKE_EXE_LINKER_FLAGS " -no-pie")
  endif()
endif()
