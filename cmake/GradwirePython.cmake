# The Python that the package is built for, and its Torch.

if(Torch_DIR)
  message(FATAL_ERROR
          "gradwire's Python package is built for the Torch of its Python: "
          "leave Torch_DIR out")
endif()
find_package(Python COMPONENTS Interpreter Development.Module)
if(NOT Python_Interpreter_FOUND OR NOT Python_Development.Module_FOUND)
  message(FATAL_ERROR
          "gradwire's Python package needs the headers (Python.h) of "
          "'${Python_EXECUTABLE}'. On Debian: apt-get install python3-dev")
endif()
execute_process(
  COMMAND ${Python_EXECUTABLE} -W ignore -c
          "import os, torch; print(os.path.dirname(os.path.realpath(torch.__file__)), torch.__version__, sep=';')"
  OUTPUT_VARIABLE gradwire_python_torch
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR
          "${Python_EXECUTABLE} has no torch: install the one to build for "
          "first, then gradwire with pip install --no-build-isolation")
endif()
list(GET gradwire_python_torch 0 GRADWIRE_TORCH_ROOT)
# With what CMake's version leaves out: 2.14.0a0 is not 2.14.0.
list(GET gradwire_python_torch 1 GRADWIRE_PYTHON_TORCH_VERSION)
