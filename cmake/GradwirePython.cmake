# The Python that the package is built for, and its Torch.

find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} -W ignore -c
          "import torch.utils; print(torch.utils.cmake_prefix_path)"
  OUTPUT_VARIABLE gradwire_python_torch
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR
          "${Python_EXECUTABLE} has no torch: install the one to build for "
          "first, then gradwire with pip install --no-build-isolation")
endif()
set(Torch_ROOT ${gradwire_python_torch})
