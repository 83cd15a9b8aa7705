# A cross build with Debian's cross compiler, its programs run by qemu-user-static, which finds the foreign C and C++
# libraries where that compiler's packages put them. cross-<arch>.cmake sets tessera_cross_arch and includes this.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${tessera_cross_arch})
set(CMAKE_C_COMPILER ${tessera_cross_arch}-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER ${tessera_cross_arch}-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-${tessera_cross_arch}-static;-L;/usr/${tessera_cross_arch}-linux-gnu)
