set(tessera_cross_arch x86_64)
include(${CMAKE_CURRENT_LIST_DIR}/cross.cmake)
