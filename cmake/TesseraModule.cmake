# Helpers that give every module of src/ the same shape: one static library tessera_<module>, one test program
# tessera_<module>_test, fuzz targets fuzz_<name>. Compiler flags are set here, and only for our own targets.

add_library(tessera_flags INTERFACE)
target_compile_options(tessera_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wunused -Wvla -Werror
  # Keeps the compiler from fusing multiplies and adds, which would change float32 results.
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports overlapping copies inside std::string that cannot happen (GCC bug 105651).
  target_compile_options(tessera_flags INTERFACE -Wno-restrict)
endif()
if(TESSERA_SANITIZE)
  target_compile_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  if(TESSERA_SANITIZE MATCHES undefined)
    # Pointers that leave their memory are AddressSanitizer's; checks of the arithmetic itself take most of the compile
    # time of vector code.
    target_compile_options(tessera_flags INTERFACE -fno-sanitize=pointer-overflow)
  endif()
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
endif()
if(TESSERA_FUZZ)
  target_compile_options(tessera_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Flags of test code, after tessera_flags. Tests spend their time in the modules, so they are compiled fast: for Clang with
# sanitizers -O0 takes less than half of the time of -O1, for GCC without them little less (docs/performance.md). Tests of
# kernels compute as much as the kernels and are optimised (TESSERA_TESTS_COMPUTE).
add_library(tessera_test_flags INTERFACE)
if(TESSERA_SANITIZE)
  target_compile_options(tessera_test_flags INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:COMPUTES>>>:-O0>)
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(tessera_test_flags INTERFACE -O1)
endif()
if(TESSERA_SANITIZE MATCHES undefined)
  # Only the modules are checked.
  target_compile_options(tessera_test_flags INTERFACE -fno-sanitize=undefined)
endif()
# Links a test program in a quarter of the time of GNU ld. What users run is linked by the compiler's own linker.
find_program(MOLD mold)
if(MOLD)
  target_link_options(tessera_test_flags INTERFACE -fuse-ld=mold)
endif()

# tessera_batches(OUT TARGET SOURCES...): sets OUT to files that each include sixteen of the .cc files of src/ and tests/,
# and to the other sources. For most files, parsing headers and instantiating their templates takes more than half of the
# compile time. CMake's own unity builds name the files by absolute paths, which end up in __FILE__ and so in programs,
# and which keep clones in different folders from sharing a compiler cache.
function(tessera_batches out target)
  set(batched "")
  set(sources "")
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    set(is_batched FALSE)
    foreach(root ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
      cmake_path(IS_PREFIX root ${source} is_below)
      if(is_below AND source MATCHES "\\.cc$")
        cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${root})
        list(APPEND batched ${source})
        set(is_batched TRUE)
        break()
      endif()
    endforeach()
    if(NOT is_batched)
      list(APPEND sources ${source})
    endif()
  endforeach()
  set(number 0)
  while(batched)
    list(SUBLIST batched 0 16 batch)
    list(REMOVE_ITEM batched ${batch})
    list(TRANSFORM batch REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN batch "" text)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/batches/${target}_${number}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND sources ${file})
    math(EXPR number "${number} + 1")
  endwhile()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

# tessera_embed(OUT FUNCTION FOLDER PATTERN): sets OUT to a source that defines tessera::FUNCTION(), which returns the texts
# of the files below FOLDER that match PATTERN, each with its path (base/embedded_text.h). Whoever calls it declares it.
function(tessera_embed out function folder pattern)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${pattern})
  set(entries "")
  foreach(file ${files})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} text)
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
    cmake_path(REMOVE_EXTENSION file LAST_ONLY)
    string(APPEND entries "      {\"${file}\", R\"~~(${text})~~\"},\n")
  endforeach()
  configure_file(${PROJECT_SOURCE_DIR}/cmake/embedded_texts.cc.in ${CMAKE_CURRENT_BINARY_DIR}/${function}.cc @ONLY)
  set(${out} ${CMAKE_CURRENT_BINARY_DIR}/${function}.cc PARENT_SCOPE)
endfunction()

# tessera_found(OUT ENDING EXCEPT...): sets OUT to the sources of this folder whose names have ENDING, a regular expression,
# those of the folder itself first; folders below it with a CMakeLists.txt look for their own.
function(tessera_found out ending)
  file(GLOB found RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *.cc)
  file(GLOB_RECURSE below RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *.cc)
  list(REMOVE_ITEM below ${found})
  file(GLOB_RECURSE apart RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} */CMakeLists.txt)
  foreach(file ${apart})
    cmake_path(GET file PARENT_PATH folder)
    list(FILTER below EXCLUDE REGEX "^${folder}/")
  endforeach()
  list(APPEND found ${below})
  list(FILTER found INCLUDE REGEX "${ending}")
  if(ARGN)
    list(REMOVE_ITEM found ${ARGN})
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# tessera_module(NAME [SEPARATE] [COLD] EXCEPT c.cc SOURCES made.cc DEPS base platform LIBS PkgConfig::PCRE2)
# All sources of the folder but tests, fuzz targets, main.cc and EXCEPT; SOURCES are others. DEPS are modules (public), LIBS
# are third-party targets (private). SEPARATE: always compiled file by file.
# COLD: a run spends no time there, so it is optimised lightly, which compiles a quarter faster.
function(tessera_module name)
  cmake_parse_arguments(ARG "SEPARATE;COLD" "" "EXCEPT;SOURCES;DEPS;LIBS;PUBLIC_LIBS" ${ARGN})
  tessera_found(sources "\\.cc$" main.cc ${ARG_EXCEPT})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  list(APPEND sources ${ARG_SOURCES})
  if(TESSERA_UNITY STREQUAL "all" AND NOT ARG_SEPARATE)
    tessera_batches(sources tessera_${name} ${sources})
  endif()
  add_library(tessera_${name} STATIC ${sources})
  target_include_directories(tessera_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(tessera_${name} PRIVATE tessera_flags ${ARG_LIBS})
  target_link_libraries(tessera_${name} PUBLIC ${ARG_PUBLIC_LIBS})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(tessera_${name} PUBLIC tessera_${dep})
  endforeach()
  if(ARG_COLD AND CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(tessera_${name} PRIVATE -O1)
  endif()
  if(sources MATCHES "/batches/" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC treats every file of a batch as a header, whose types must not have members from anonymous namespaces.
    target_compile_options(tessera_${name} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

if(TESSERA_TESTS)
  find_package(GTest REQUIRED)
  # Fixtures that tests of several modules share.
  set(support ${PROJECT_SOURCE_DIR}/tests/support)
  add_library(tessera_test_paths STATIC ${PROJECT_SOURCE_DIR}/tests/test_paths.cc)
  target_compile_definitions(tessera_test_paths PRIVATE TESSERA_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    TESSERA_BUILD_DIR="${PROJECT_BINARY_DIR}")
  target_include_directories(tessera_test_paths PUBLIC ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(tessera_test_paths PRIVATE tessera_flags)
  add_library(tessera_test_main STATIC ${PROJECT_SOURCE_DIR}/tests/test_main.cc)
  target_link_libraries(tessera_test_main PRIVATE tessera_flags tessera_platform PUBLIC GTest::gmock)
  # In a folder of its own, which a test may put into LD_LIBRARY_PATH.
  add_library(tessera_fake_nvml MODULE ${support}/fake_nvml.cc)
  set_target_properties(tessera_fake_nvml PROPERTIES OUTPUT_NAME nvidia-ml SUFFIX .so.1
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fake_nvml)
  target_link_libraries(tessera_fake_nvml PRIVATE tessera_flags)
  if(TESSERA_SANITIZE MATCHES undefined)
    # Caller and library name the types of their arguments independently, as with the driver's.
    set_source_files_properties(${support}/fake_nvml.cc PROPERTIES COMPILE_OPTIONS -fno-sanitize=undefined)
  endif()
  add_dependencies(tessera_test_paths tessera_fake_nvml)
endif()

# tessera_suites(NAME TARGET [LABEL unit] [TIMEOUT 300] [FILTER Suite...] [APART Suite...] [ENVIRONMENT A=b...]
# [PROPERTIES ...] [ON_DISK]): defines a test NAME.Suite for every suite of the test program TARGET, or for those of FILTER, when ctest
# starts. No case may run for longer than TIMEOUT seconds. APART: suites with a process, and a test, for every case. ON_DISK:
# of a unit test: its temporary files are not in memory.
function(tessera_suites name target)
  cmake_parse_arguments(ARG "ON_DISK" "LABEL;TIMEOUT" "FILTER;APART;ENVIRONMENT;PROPERTIES" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(in_memory FALSE)
  if(ARG_LABEL STREQUAL "unit" AND NOT ARG_ON_DISK)
    set(in_memory TRUE)
  endif()
  set(environment TESSERA_CASE_SECONDS=${ARG_TIMEOUT} ${ARG_ENVIRONMENT})
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake)
  file(GENERATE OUTPUT ${file} CONTENT "set(name \"${name}\")
set(program \"$<TARGET_FILE:${target}>\")
set(filter \"${ARG_FILTER}\")
set(apart \"${ARG_APART}\")
set(in_memory ${in_memory})
set(case_seconds ${ARG_TIMEOUT})
set(environment \"${environment}\")
set(properties \"LABELS;${ARG_LABEL};${ARG_PROPERTIES}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/TestSuites.cmake\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()

# tessera_test(NAME SOURCES x_test.cc DEPS module... LIBS ... SERIAL SEPARATE, and LABEL, TIMEOUT, APART and ON_DISK of
# tessera_suites): the test program tessera_NAME_test. One with the name of the folder that names no tests has all those of the
# folder that no call before it names. SERIAL: no other test runs at the same time. SEPARATE: always compiled file by file.
function(tessera_test name)
  if(NOT TESSERA_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "SERIAL;SEPARATE;ON_DISK" "LABEL;TIMEOUT" "SOURCES;DEPS;LIBS;DEFINITIONS;APART" ${ARGN})
  set(on_disk "")
  if(ARG_ON_DISK)
    set(on_disk ON_DISK)
  endif()
  set(sources ${ARG_SOURCES})
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  if(name STREQUAL folder AND NOT ARG_SOURCES MATCHES "_test\\.cc")
    get_property(named DIRECTORY PROPERTY TESSERA_NAMED_TESTS)
    tessera_found(sources "_test\\.cc$" ${named})
    list(APPEND sources ${ARG_SOURCES})
  endif()
  set_property(DIRECTORY APPEND PROPERTY TESSERA_NAMED_TESTS ${ARG_SOURCES})
  if(NOT TESSERA_UNITY STREQUAL "none" AND NOT ARG_SEPARATE)
    tessera_batches(sources tessera_${name}_test ${sources})
  endif()
  add_executable(tessera_${name}_test ${sources})
  target_include_directories(tessera_${name}_test PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(tessera_${name}_test PRIVATE ${ARG_DEFINITIONS})
  set_target_properties(tessera_${name}_test PROPERTIES COMPUTES "${TESSERA_TESTS_COMPUTE}")
  target_link_libraries(tessera_${name}_test PRIVATE tessera_flags tessera_test_flags tessera_test_paths
    tessera_test_main ${ARG_LIBS})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(tessera_${name}_test PRIVATE tessera_${dep})
  endforeach()
  tessera_suites(${name} tessera_${name}_test LABEL ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} ${on_disk}
    APART ${ARG_APART} PROPERTIES RUN_SERIAL ${ARG_SERIAL})
  set_property(GLOBAL APPEND PROPERTY TESSERA_TEST_PROGRAMS $<TARGET_FILE:tessera_${name}_test>)
endfunction()

# tessera_fuzz(NAME SOURCES x_fuzz.cc DEPS module...): libFuzzer program fuzz_<name>, built with TESSERA_FUZZ=ON.
function(tessera_fuzz name)
  if(NOT TESSERA_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  add_executable(fuzz_${name} ${ARG_SOURCES})
  set_target_properties(fuzz_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzzers)
  if(NOT TARGET fuzzers)
    add_custom_target(fuzzers)
  endif()
  add_dependencies(fuzzers fuzz_${name})
  target_include_directories(fuzz_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(fuzz_${name} PRIVATE tessera_flags ${ARG_LIBS})
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer $<TARGET_PROPERTY:tessera_test_flags,INTERFACE_LINK_OPTIONS>)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(fuzz_${name} PRIVATE tessera_${dep})
  endforeach()
endfunction()
