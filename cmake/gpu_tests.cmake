# sluice_gpu_tests: the tests of all parts of the CUDA backend, and whole tiny models, in one program. It is carried to a
# machine with a card: `./dev gpu-tests` lays it out with its cases in build/gpu_tests.
get_property(tests GLOBAL PROPERTY SLUICE_GPU_TESTS)
add_executable(sluice_gpu_tests EXCLUDE_FROM_ALL ${tests} ${CMAKE_SOURCE_DIR}/src/engine/gpu_models_test.cc
  ${CMAKE_SOURCE_DIR}/src/engine/gpu_order_test.cc)
target_link_libraries(sluice_gpu_tests PRIVATE sluice_engine sluice_model sluice_tensor GTest::gtest GTest::gtest_main)
target_link_options(sluice_gpu_tests PRIVATE -static-libstdc++ -static-libgcc)
set_target_properties(sluice_gpu_tests PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu)
