set(tessera_cross_arch aarch64)
include(${CMAKE_CURRENT_LIST_DIR}/cross.cmake)
