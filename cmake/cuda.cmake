# Cubins of the CUDA lane: one for each row of kernels.def, by custom command, embedded as they are in a source file that
# names their bytes. CMake's own CUDA language is not used: cubins hold no host code and need no linking.
set(TESSERA_LANE_CUDA AUTO CACHE STRING "Build the lane of CUDA kernels: AUTO (where there is an nvcc), ON or OFF")
set_property(CACHE TESSERA_LANE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TESSERA_CUBINS "" CACHE PATH "Another build tree's folder of cubins: those that would come out the same are copied")

set(TESSERA_CUDA_WAIT_LIMIT "" CACHE STRING "How often a wait of a kernel looks before it traps; empty: for ever")

# Sets tessera_nvcc to an nvcc of 13.0 or newer, or to nothing, and tessera_nvcc_problem to why.
function(tessera_find_nvcc)
  set(cache_folder $ENV{XDG_CACHE_HOME})
  if(NOT cache_folder)
    set(cache_folder $ENV{HOME}/.cache)
  endif()
  set(place ${cache_folder}/tessera/cuda)
  if(DEFINED ENV{TESSERA_CUDA})
    set(place $ENV{TESSERA_CUDA})
  endif()
  file(GLOB fetched ${place}/nvcc-*/bin)
  set(problem "there is none: script/setup --cuda gets it")
  set(found)
  find_program(TESSERA_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin DOC "NVIDIA's compiler for GPU code")
  foreach(nvcc ${TESSERA_NVCC} ${fetched})
    if(IS_DIRECTORY ${nvcc})
      set(nvcc ${nvcc}/nvcc)
    endif()
    execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" version "${text}")
    if(status EQUAL 0 AND CMAKE_MATCH_1 VERSION_GREATER_EQUAL 13.0)
      set(found ${nvcc})
      break()
    elseif(EXISTS ${nvcc})
      set(problem "${nvcc} is release \"${CMAKE_MATCH_1}\", and 13.0 or newer is needed: script/setup --cuda gets it")
    endif()
  endforeach()
  set(tessera_nvcc "${found}" PARENT_SCOPE)
  set(tessera_nvcc_problem "${problem}" PARENT_SCOPE)
endfunction()

# tessera_cubins(TARGET): adds embedded cubins to a library in whose folder kernels.def and kernels/ are; none where the
# lane is not to be built. The library asks EmbeddedCubins() what it has.
function(tessera_cubins target)
  set(folder ${CMAKE_CURRENT_SOURCE_DIR})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/cubins)
  set(rows)
  if(NOT TESSERA_LANE_CUDA STREQUAL "OFF")
    tessera_find_nvcc()
    if(tessera_nvcc)
      file(STRINGS ${folder}/kernels.def rows REGEX "^TESSERA_CUDA_KERNEL\\([a-z]+, [a-z0-9]+, [0-9]")
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/kernels.def)
      message(STATUS "CUDA lane: with ${tessera_nvcc}")
    elseif(TESSERA_LANE_CUDA STREQUAL "AUTO")
      message(STATUS "CUDA lane: left out, for want of nvcc: ${tessera_nvcc_problem}")
    else()
      message(FATAL_ERROR "TESSERA_LANE_CUDA is ${TESSERA_LANE_CUDA}, and nvcc is needed: ${tessera_nvcc_problem}")
    endif()
  endif()
  file(MAKE_DIRECTORY ${out})
  set(like)
  if(TESSERA_CUBINS AND NOT TESSERA_CUBINS STREQUAL out)
    set(like --like ${TESSERA_CUBINS})
  endif()
  set(limit)
  if(TESSERA_CUDA_WAIT_LIMIT)  # which takes more registers than there are
    set(limit --debug --define TESSERA_CUDA_WAIT_LIMIT=${TESSERA_CUDA_WAIT_LIMIT})
  endif()
  set(tiled_forward --tiled)
  set(tiled_dq --tiled)
  set(tiled_dkv --tiled)
  set(type_bf16 Bf16)
  set(type_f16 F16)
  set(type_f32 F32)
  set(cap_none kNone)
  set(cap_bounded kBounded)
  set(cap_wide kWide)
  set(cap_capped kWide)
  set(threads_forward 384)
  set(threads_dq 384)
  set(threads_dkv 384)
  set(threads_prepare 256)
  set(threads_join 256)
  set(threads_sinks 128)
  set(cubins)
  set(symbols)
  set(entries)
  foreach(row ${rows})
    string(REGEX MATCH "\\((.*)\\)" fields "${row}")
    string(REGEX REPLACE ", *" ";" fields "${CMAKE_MATCH_1}")
    list(GET fields 0 kind)
    list(GET fields 1 dtype)
    list(GET fields 2 dim_qk)
    list(GET fields 3 dim_v)
    list(GET fields 4 softcap)
    set(name tessera_${kind}_${dtype}_${dim_qk}_${dim_v}_${softcap})
    set(cubin ${out}/${name}.cubin)
    set(source ${folder}/kernels/${kind}.cu)
    add_custom_command(
      OUTPUT ${cubin}
      COMMAND python3 ${PROJECT_SOURCE_DIR}/cmake/cubin.py --nvcc ${tessera_nvcc} --name ${name} ${tiled_${kind}}
              ${limit} --threads ${threads_${kind}} --define TESSERA_CUDA_TYPE=${type_${dtype}} --define TESSERA_CUDA_DIM_QK=${dim_qk} --define
              TESSERA_CUDA_DIM_V=${dim_v} --define TESSERA_CUDA_SOFTCAP=${cap_${softcap}} --include
              ${PROJECT_SOURCE_DIR}/src --depend ${cubin}.d ${like} ${source} ${cubin}
      DEPENDS ${source} ${PROJECT_SOURCE_DIR}/cmake/cubin.py
      DEPFILE ${cubin}.d
      COMMENT "Compiling ${name}.cubin"
      VERBATIM)
    list(APPEND cubins ${cubin})
    string(APPEND symbols "asm(\".pushsection .rodata\\n.balign 64\\n.globl ${name}_begin\\n.hidden ${name}_begin\\n\"\n"
           "    \"${name}_begin:\\n.incbin \\\"${cubin}\\\"\\n.globl ${name}_end\\n.hidden ${name}_end\\n${name}_end:\\n\"\n"
           "    \".byte 0\\n.popsection\\n\");\n"
           "extern \"C\" const std::byte ${name}_begin[] __attribute__((visibility(\"hidden\")));\n"
           "extern \"C\" const std::byte ${name}_end[] __attribute__((visibility(\"hidden\")));\n")
    string(APPEND entries "      {\"${name}\", {${name}_begin, ${name}_end}},\n")
  endforeach()
  set(embedded ${CMAKE_CURRENT_BINARY_DIR}/embedded_cubins.cc)
  file(CONFIGURE OUTPUT ${embedded} @ONLY CONTENT "// Made by cmake/cuda.cmake.
#include <cstddef>

#include \"lanes/cuda/kernels.h\"

${symbols}
std::span<const tessera::lanes::cuda::Cubin> tessera::lanes::cuda::EmbeddedCubins() {
  static const std::vector<Cubin> kCubins = {
${entries}  };
  return kCubins;
}
")
  set_source_files_properties(${embedded} PROPERTIES OBJECT_DEPENDS "${cubins}" SKIP_PRECOMPILE_HEADERS ON)
  target_sources(${target} PRIVATE ${embedded})
  if(cubins)
    add_custom_target(cubins DEPENDS ${cubins})
    add_dependencies(${target} cubins)
  endif()
endfunction()
