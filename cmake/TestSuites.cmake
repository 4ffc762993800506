# ctest includes this file once for every call of tessera_suites() of TesseraModule.cmake, which sets `name`, `program`,
# `filter`, `apart`, `in_memory`, `case_seconds`, `environment` and `properties`. Defines the test <name>.<suite> for every suite of the
# program, which runs its cases in one process (tests/test_main.cc), or <name>.<suite>.<case> for every case of a suite in
# `apart`.
cmake_policy(VERSION 3.25)
if(NOT EXISTS "${program}")
  add_test(${name}_NOT_BUILT ${name}_NOT_BUILT)
  return()
endif()
set(list "${program}.cases")
if("${program}" IS_NEWER_THAN "${list}")
  execute_process(COMMAND "${program}" --gtest_list_tests COMMAND sed "s/ *#.*//" OUTPUT_FILE "${list}"
    COMMAND_ERROR_IS_FATAL ANY)
endif()

# Files of tests in memory, if there is room: of 35 s of train.Resume, 28 are for a disk that syncs.
if(in_memory AND NOT DEFINED ENV{TMPDIR})
  if(NOT DEFINED ENV{TESSERA_TEST_FOLDER})
    execute_process(COMMAND df --output=avail -k /dev/shm OUTPUT_VARIABLE free ERROR_QUIET)
    if(free MATCHES "[0-9]+" AND CMAKE_MATCH_0 GREATER 4000000)
      set(ENV{TESSERA_TEST_FOLDER} /dev/shm/tests-of-tessera)
      file(MAKE_DIRECTORY $ENV{TESSERA_TEST_FOLDER})
    endif()
  endif()
  if(DEFINED ENV{TESSERA_TEST_FOLDER})
    list(APPEND environment "TMPDIR=$ENV{TESSERA_TEST_FOLDER}")
  endif()
endif()

macro(add_cases test cases num_cases)
  add_test("${name}.${test}" "${program}" "--gtest_filter=${cases}")
  math(EXPR timeout "${case_seconds} * ${num_cases} + 60")  # tests/test_main.cc keeps to that of a case
  # In seconds: ctest starts the longest tests first, so that none runs alone at the end. It knows the time of those with 0
  # from its last run, if there was one.
  math(EXPR cost "${num_cases} / 10")
  set_tests_properties("${name}.${test}" PROPERTIES SKIP_RETURN_CODE 77 COST ${cost} TIMEOUT ${timeout}
    ENVIRONMENT "${environment}" ${properties})
endmacro()

file(STRINGS "${list}" lines)
set(num_cases 0)
foreach(line IN LISTS lines ITEMS "end.")
  if(line MATCHES "^ +(.*)")
    set(case "${suite}.${CMAKE_MATCH_1}")
    if(filter AND NOT suite IN_LIST filter)
      if(case IN_LIST filter)
        add_cases("${case}" "${case}" 1)
      endif()
    elseif(suite IN_LIST apart)
      add_cases("${case}" "${case}" 1)
    else()
      math(EXPR num_cases "${num_cases} + 1")
    endif()
  else()
    if(num_cases GREATER 0)
      add_cases("${suite}" "${suite}.*" ${num_cases})
    endif()
    string(REGEX REPLACE "\\.$" "" suite "${line}")
    set(num_cases 0)
  endif()
endforeach()
