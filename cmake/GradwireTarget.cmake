# What every target of gradwire is compiled with.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(GRADWIRE_CCACHE ccache)
if(GRADWIRE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need the sloppiness to be cached at all.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros ${GRADWIRE_CCACHE})
endif()

find_program(GRADWIRE_MOLD mold)
if(GRADWIRE_MOLD)
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

# gradwire_compile_options(target): warnings, and the repository as include
# root.
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
endfunction()
