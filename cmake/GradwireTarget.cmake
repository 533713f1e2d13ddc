# What every target of gradwire is compiled with.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(GRADWIRE_CCACHE ccache)
if(GRADWIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need the sloppiness to be cached at all. With paths below
  # the base taken as relative, build folders of equal depth share results.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${GRADWIRE_CCACHE})
endif()

find_program(GRADWIRE_MOLD mold)
if(GRADWIRE_MOLD AND NOT CMAKE_CROSSCOMPILING)
  add_link_options(-fuse-ld=mold)
endif()

if(GRADWIRE_SANITIZE)
  string(REPLACE "," ";" sanitizers "${GRADWIRE_SANITIZE}")
  foreach(sanitizer IN LISTS sanitizers)
    add_compile_options(-fsanitize=${sanitizer})
    add_link_options(-fsanitize=${sanitizer})
  endforeach()
  add_compile_options(-fno-omit-frame-pointer -fno-sanitize-recover=all)
endif()

# gradwire_compile_options(target): warnings, and the files of a room compiled
# as one, which reads Torch's headers once. A file with options of its own stays
# alone. Without GRADWIRE_UNITY every file is compiled by itself, which shows that
# each includes what it needs (preset alone).
function(gradwire_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  if(GRADWIRE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(GRADWIRE_SANITIZE MATCHES "thread")
    # Torch's headers use fences, which the thread sanitizer does not model.
    target_compile_options(${target} PRIVATE -Wno-tsan)
  endif()
  target_compile_features(${target} PUBLIC cxx_std_20)

  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(room "${folder}" NAME)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP "room_${room}")
  endforeach()
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD "${GRADWIRE_UNITY}"
    UNITY_BUILD_MODE GROUP)
endfunction()

# gradwire_program_options(target): for apps, examples, benchmarks and tests.
# They spend their time in Torch and in the library, so they are compiled quickly
# rather than well.
function(gradwire_program_options target)
  gradwire_compile_options(${target})
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# gradwire_torch_program(target): the same with torch.h precompiled, once for all
# of them.
function(gradwire_torch_program target)
  if(NOT TARGET gradwire_torch_header)
    set(source ${PROJECT_BINARY_DIR}/torch_header.cpp)
    file(CONFIGURE OUTPUT ${source} CONTENT "")
    add_library(gradwire_torch_header OBJECT ${source})
    target_link_libraries(gradwire_torch_header PRIVATE gradwire::torch)
    target_precompile_headers(gradwire_torch_header PRIVATE <torch/torch.h>)
    gradwire_program_options(gradwire_torch_header)
  endif()
  gradwire_program_options(${target})
  target_precompile_headers(${target} REUSE_FROM gradwire_torch_header)
  if(NOT GRADWIRE_UNITY)
    # What includes torch.h by itself loses nothing by having it beforehand.
    gradwire_sources_without(${target} "^#include <torch/torch.h>" sources)
    set_source_files_properties(${sources} PROPERTIES
      SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# gradwire_sources_without(target pattern result): those of the target's sources
# that have no such line.
function(gradwire_sources_without target pattern result)
  get_target_property(sources ${target} SOURCES)
  set(without "")
  foreach(source IN LISTS sources)
    get_filename_component(file ${source} ABSOLUTE)
    file(STRINGS ${file} found REGEX ${pattern} LIMIT_COUNT 1)
    if(NOT found)
      list(APPEND without ${source})
    endif()
  endforeach()
  set(${result} "${without}" PARENT_SCOPE)
endfunction()
