# Finds Torch and makes the target gradwire::torch of it: the headers and
# libraries of a wheel, or of LibTorch's archive, as they lie there. Torch's own
# CMake package is not asked, because that of a CUDA build demands a CUDA
# toolkit, which nothing here needs. Part of the installed package too.
#
# In:  Torch_DIR, as Torch's own package has it: the folder share/cmake/Torch of
#      the Torch to use. Else GRADWIRE_TORCH_ROOT, the folder that has include/
#      and lib/.
# Out: gradwire::torch, GRADWIRE_TORCH_ROOT, GRADWIRE_TORCH_LIB_DIR,
#      GRADWIRE_TORCH_VERSION

if(Torch_DIR)
  get_filename_component(GRADWIRE_TORCH_ROOT ${Torch_DIR}/../../.. ABSOLUTE)
endif()
foreach(needed IN ITEMS
    include/torch/csrc/distributed/c10d/ProcessGroupGloo.hpp
    lib/libtorch_cpu.so
    share/cmake/Torch/TorchConfigVersion.cmake)
  if(NOT EXISTS "${GRADWIRE_TORCH_ROOT}/${needed}")
    message(FATAL_ERROR
            "gradwire needs Torch with Gloo, and '${GRADWIRE_TORCH_ROOT}' has "
            "no ${needed}. Say where Torch is with "
            "-DTorch_DIR=FOLDER/share/cmake/Torch, or let tools/setup install it")
  endif()
endforeach()

file(STRINGS ${GRADWIRE_TORCH_ROOT}/share/cmake/Torch/TorchConfigVersion.cmake
     GRADWIRE_TORCH_VERSION REGEX "^set\\(PACKAGE_VERSION ")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1"
       GRADWIRE_TORCH_VERSION "${GRADWIRE_TORCH_VERSION}")
if(GRADWIRE_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR
          "gradwire needs Torch 2.11 or newer, got ${GRADWIRE_TORCH_VERSION} "
          "in ${GRADWIRE_TORCH_ROOT}")
endif()
set(GRADWIRE_TORCH_LIB_DIR ${GRADWIRE_TORCH_ROOT}/lib)

if(NOT TARGET gradwire::torch)
  add_library(gradwire::torch INTERFACE IMPORTED)
  set_target_properties(gradwire::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${GRADWIRE_TORCH_ROOT}/include;${GRADWIRE_TORCH_ROOT}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS
      "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
    INTERFACE_LINK_LIBRARIES
      "${GRADWIRE_TORCH_LIB_DIR}/libtorch_cpu.so;${GRADWIRE_TORCH_LIB_DIR}/libc10.so")
endif()
