# libtessera as users get it, shared and static, out of the objects of src/'s folders: nothing is compiled a second time.
# Then what is installed, for CMake, for pkg-config and as a Debian package.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(tessera_parts GLOBAL PROPERTY tessera_parts)
list(TRANSFORM tessera_parts REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE tessera_objects)
get_target_property(tessera_fmt_type tessera_fmt TYPE)
if(tessera_fmt_type STREQUAL "STATIC_LIBRARY")  # made here, so nobody who links libtessera.a has it
  list(APPEND tessera_objects $<TARGET_OBJECTS:tessera_fmt>)
endif()
# The soname changes when the ABI does; c_api.h holds the number.
file(STRINGS ${PROJECT_SOURCE_DIR}/include/tessera/c_api.h tessera_abi_line REGEX "define TESSERA_ABI_VERSION ")
string(REGEX MATCH "[0-9]+" tessera_abi "${tessera_abi_line}")

add_library(tessera_shared SHARED ${tessera_objects})
add_library(tessera_static STATIC ${tessera_objects})
foreach(library tessera_shared tessera_static)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME tessera LINKER_LANGUAGE CXX)
  target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${library} PRIVATE $<BUILD_INTERFACE:tessera_fmt> $<BUILD_INTERFACE:tessera_threads>
                                   $<BUILD_INTERFACE:tessera_simdjson> ${CMAKE_DL_LIBS}
                                   INTERFACE $<BUILD_INTERFACE:tessera_expected>)
endforeach()
set_target_properties(tessera_shared PROPERTIES EXPORT_NAME tessera VERSION ${PROJECT_VERSION} SOVERSION ${tessera_abi})

# Folders compile with hidden visibility and public headers export what they declare; the map also keeps instantiated
# templates of other libraries inside.
set(tessera_map ${PROJECT_SOURCE_DIR}/cmake/libtessera.map)
target_link_options(tessera_shared PRIVATE -Wl,--version-script=${tessera_map})
set_target_properties(tessera_shared PROPERTIES LINK_DEPENDS ${tessera_map})
if(NOT TESSERA_SANITIZE)  # a sanitizer's run-time library comes with the program
  target_link_options(tessera_shared PRIVATE -Wl,--no-undefined)
endif()

# A static libtessera leaves the libraries it calls to whoever links it: fmt, unless it came as headers only, oneTBB, unless
# the threads are plain ones, simdjson where it was found, and the system's threads and loader, which an old C library
# keeps in files of their own.
set(tessera_static_needs Threads)
set(tessera_private_libs)

# tessera_static_need(PACKAGE TARGET LIBRARY): for CMake by its package, for pkg-config by its name, and by its folder
# where that is not one of those that every linker looks in.
function(tessera_static_need package target library)
  if(NOT TARGET ${target})
    return()
  endif()
  target_link_libraries(tessera_static PRIVATE $<INSTALL_INTERFACE:${target}>)
  set(flags -l${library})
  get_target_property(file ${target} LOCATION)
  if(file)
    get_filename_component(folder ${file} DIRECTORY)
    get_filename_component(folder ${folder} REALPATH)
    set(searched ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES})
    list(TRANSFORM searched REPLACE "/+$" "")
    if(NOT folder IN_LIST searched)
      list(PREPEND flags -L${folder})
    endif()
  endif()
  set(tessera_static_needs ${tessera_static_needs} ${package} PARENT_SCOPE)
  set(tessera_private_libs ${tessera_private_libs} ${flags} PARENT_SCOPE)
endfunction()

tessera_static_need(fmt fmt::fmt fmt)
tessera_static_need(TBB TBB::tbb tbb)
tessera_static_need(simdjson simdjson::simdjson simdjson)
target_link_libraries(tessera_static PRIVATE $<INSTALL_INTERFACE:Threads::Threads>)
list(APPEND tessera_private_libs -lstdc++ -lm -ldl -pthread)
list(JOIN tessera_private_libs " " tessera_private_libs)

# The names that find_package gives them, for a project that takes this one in with add_subdirectory.
add_library(tessera::tessera ALIAS tessera_shared)
add_library(tessera::tessera_static ALIAS tessera_static)
if(NOT TESSERA_INSTALL)
  return()
endif()

set(tessera_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
if(TESSERA_BUILD_PROGRAM)
  install(TARGETS tessera DESTINATION ${CMAKE_INSTALL_BINDIR})
  # The program writes its own manual and what shells complete, where it can be run as it is.
  if(NOT CMAKE_CROSSCOMPILING AND NOT TESSERA_SANITIZE)
    set(tessera_texts)
    foreach(text "man,tessera.1,${CMAKE_INSTALL_MANDIR}/man1" "completion bash,tessera,${CMAKE_INSTALL_DATADIR}/bash-completion/completions"
            "completion zsh,_tessera,${CMAKE_INSTALL_DATADIR}/zsh/site-functions"
            "completion fish,tessera.fish,${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")
      string(REPLACE "," ";" text "${text}")
      list(GET text 0 tessera_words)
      list(GET text 1 tessera_name)
      list(GET text 2 tessera_folder)
      string(REPLACE " " ";" tessera_words "${tessera_words}")
      set(tessera_text ${PROJECT_BINARY_DIR}/texts/${tessera_name})
      add_custom_command(OUTPUT ${tessera_text} COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/texts
                         COMMAND tessera ${tessera_words} > ${tessera_text} DEPENDS tessera
                         COMMENT "Writing texts/${tessera_name}")
      list(APPEND tessera_texts ${tessera_text})
      install(FILES ${tessera_text} DESTINATION ${tessera_folder} OPTIONAL)  # who builds one target may install it
    endforeach()
    add_custom_target(tessera_texts ALL DEPENDS ${tessera_texts})
  endif()
endif()
install(TARGETS tessera_shared EXPORT tesseraTargets DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tessera_static EXPORT tesseraStaticTargets DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tessera_cpuinfo)  # preloaded by the program, never linked
  install(TARGETS tessera_cpuinfo DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${tessera_cmake_dir})
install(EXPORT tesseraStaticTargets NAMESPACE tessera:: DESTINATION ${tessera_cmake_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
                              INSTALL_DESTINATION ${tessera_cmake_dir})
# Before 1.0 a minor version may break what stands above the C interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
        DESTINATION ${tessera_cmake_dir})

# Says where it is by where it lies, so that an installed tree can be moved.
file(RELATIVE_PATH tessera_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_CONTACT "The Tessera authors <tessera@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Block-sparse attention engine: program, library and headers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_PROVIDES "libtessera${tessera_abi}, libtessera-dev")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libexpected-dev)  # the C++ headers include it
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libfmt-dev, libtbb-dev, libsimdjson-dev")  # for the static library
find_program(tessera_shlibdeps dpkg-shlibdeps)
find_program(tessera_file file)  # which CPack asks what is a binary
if(tessera_shlibdeps AND tessera_file AND NOT CMAKE_CROSSCOMPILING)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
endif()
include(CPack)
