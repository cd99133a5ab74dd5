# One static library per room, one test program per room. `room(NAME SOURCES … DEPS …)` and
# `room_test(NAME SOURCES … DEPS …)` are all that a room's CMakeLists.txt needs.
function(room name)
  cmake_parse_arguments(R "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(sluice_${name} STATIC ${R_SOURCES})
  target_include_directories(sluice_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(sluice_${name} PUBLIC ${R_DEPS} Threads::Threads PRIVATE ${R_PRIVATE_DEPS})
endfunction()

if(SLUICE_TESTS)
  add_library(unit_test_main STATIC ${CMAKE_SOURCE_DIR}/tests/unit/main.cc)
  target_link_libraries(unit_test_main PUBLIC GTest::gtest GTest::gmock)
endif()

function(room_test name)
  if(NOT SLUICE_TESTS)
    return()
  endif()
  cmake_parse_arguments(R "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name}_test ${R_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${R_DEPS} unit_test_main)
  target_compile_definitions(${name}_test PRIVATE SLUICE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name}_test)
endfunction()

# A fuzz target is one file with LLVMFuzzerTestOneInput. With SLUICE_FUZZ it is a libFuzzer program; in every
# other build it becomes a program that replays its corpus, which is what ./dev test runs.
function(room_fuzz name)
  cmake_parse_arguments(R "" "CORPUS" "SOURCES;DEPS" ${ARGN})
  if(SLUICE_FUZZ)
    add_executable(fuzz_${name} ${R_SOURCES})
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz_${name} PRIVATE ${R_DEPS})
  elseif(SLUICE_TESTS)
    add_executable(fuzz_${name} ${R_SOURCES} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.cc)
    target_link_libraries(fuzz_${name} PRIVATE ${R_DEPS})
    add_test(NAME fuzz_${name} COMMAND fuzz_${name} ${R_CORPUS})
  endif()
endfunction()
