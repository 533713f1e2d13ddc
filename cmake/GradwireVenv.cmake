# The Torch of .venv, which tools/setup makes, unless the caller names another.

if(NOT Torch_DIR AND NOT GRADWIRE_TORCH_ROOT)
  execute_process(
    COMMAND ${PROJECT_SOURCE_DIR}/.venv/bin/python -c
            "import importlib.util as u, os; print(os.path.dirname(os.path.realpath(u.find_spec('torch').origin)))"
    OUTPUT_VARIABLE GRADWIRE_TORCH_ROOT
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
  # Made anew when another Torch is asked for.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/.venv/pyvenv.cfg)
endif()
