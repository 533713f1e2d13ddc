# gradwire_add_tests(target LABELS ... [FILTER ...] [TIMEOUT seconds] [COST n])
#
# One test of ctest for every suite of a GoogleTest program, named like the
# suite: a process that loads Torch takes a quarter of a second, too long to
# start one for every case. The program is asked for its suites when ctest runs.
# A case that is skipped fails its suite. Those of a higher cost start first.
function(gradwire_add_tests target)
  cmake_parse_arguments(arg "" "TIMEOUT;FILTER;COST" "LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(NOT arg_COST)
    set(arg_COST 1)
  endif()
  if(NOT arg_FILTER)
    set(arg_FILTER "*")
  endif()
  string(MAKE_C_IDENTIFIER "${target}_${arg_LABELS}_${arg_FILTER}" name)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}.cmake)
  file(GENERATE OUTPUT ${file} CONTENT "\
set(program [==[$<TARGET_FILE:${target}>]==])
set(emulator [==[$<TARGET_PROPERTY:${target},CROSSCOMPILING_EMULATOR>]==])
set(filter [==[${arg_FILTER}]==])
set(properties LABELS [==[${arg_LABELS}]==] TIMEOUT ${arg_TIMEOUT} COST ${arg_COST})
include([==[${PROJECT_SOURCE_DIR}/cmake/GradwireSuites.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()
