# The Python that the package is built for, and its Torch.

find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} -W ignore -c
          "import torch, torch.utils as u; print(u.cmake_prefix_path, torch.__version__, sep=';')"
  OUTPUT_VARIABLE gradwire_python_torch
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR
          "${Python_EXECUTABLE} has no torch: install the one to build for "
          "first, then gradwire with pip install --no-build-isolation")
endif()
list(GET gradwire_python_torch 0 Torch_ROOT)
# With what CMake's version leaves out: 2.14.0a0 is not 2.14.0.
list(GET gradwire_python_torch 1 GRADWIRE_PYTHON_TORCH_VERSION)
