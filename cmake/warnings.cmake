# Warnings are errors, sanitizers come from one variable.
add_library(tessera_warnings INTERFACE)
target_compile_options(tessera_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                                  -Wnon-virtual-dtor -Werror)
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
endif()
