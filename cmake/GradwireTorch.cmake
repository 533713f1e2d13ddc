# Finds Torch: where the caller says (Torch_DIR, CMAKE_PREFIX_PATH), else in the
# project's own .venv.

if(NOT Torch_DIR AND NOT Torch_ROOT)
  file(GLOB gradwire_venv_torch
       ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake)
  list(APPEND CMAKE_PREFIX_PATH ${gradwire_venv_torch})
endif()

find_package(Torch REQUIRED)
if(Torch_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR
          "gradwire needs Torch 2.11 or newer, found ${Torch_VERSION}")
endif()
get_filename_component(GRADWIRE_TORCH_CMAKE_DIR ${Torch_DIR} DIRECTORY)
get_filename_component(GRADWIRE_TORCH_LIB_DIR ${TORCH_LIBRARY} DIRECTORY)
