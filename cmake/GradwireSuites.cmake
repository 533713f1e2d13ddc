# Run by ctest, for gradwire_add_tests.
# In: program, emulator (empty: the program runs by itself), filter, properties

if(NOT EXISTS ${program})
  # Fails as not built.
  add_test(${program} ${program})
  return()
endif()
execute_process(
  COMMAND ${emulator} ${program} --gtest_list_tests --gtest_filter=${filter}
  OUTPUT_VARIABLE listed
  RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${program} does not list its tests: ${failed}")
endif()
# A line without an indent is a suite with a point behind it.
string(REGEX MATCHALL "\n[^ \n]+[.]" suites "\n${listed}")
if(NOT suites)
  # A test that fails: a filter that finds nothing checks nothing.
  add_test("no suite of ${filter}" false)
  return()
endif()
foreach(suite IN LISTS suites)
  string(REGEX REPLACE "^\n(.*)[.]$" "\\1" suite "${suite}")
  # All of the suite, or of what the filter leaves of it.
  set(cases ${suite}.*)
  if(filter MATCHES "(^|:)${suite}[.][^*]")
    set(cases ${filter})
  endif()
  add_test(${suite} ${emulator} ${program} --gtest_filter=${cases})
  set_tests_properties(${suite} PROPERTIES
    ${properties}
    FAIL_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endforeach()
