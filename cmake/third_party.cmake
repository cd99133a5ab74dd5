# What is linked in, all static or header-only, so that the binary needs only glibc and libm.
# apt supplies Boost, fmt, spdlog, PCRE2, utf8proc, nghttp2, nlohmann-json, CLI11, yaml-cpp, hwloc, gtest, and OpenSSL, which
# may lack (src/server/CMakeLists.txt); third_party/ holds sources that `./dev deps` takes out of PyPI archives (see third_party/requirements.txt).
set(TP ${CMAKE_SOURCE_DIR}/third_party)
if(NOT EXISTS ${TP}/llama_cpp_python/common/jinja OR NOT EXISTS ${TP}/pysimdjson/simdjson OR NOT EXISTS ${TP}/xgrammar/cpp)
  message(FATAL_ERROR "third_party/ is incomplete: run ./dev deps (it fetches three PyPI source archives)")
endif()

if(NOT EXISTS ${TP}/uplot/uPlot.iife.js OR NOT EXISTS ${TP}/uplot/uPlot.min.css)
  message(FATAL_ERROR "third_party/uplot, the charts of the page, is missing: run ./dev deps page (it fetches one PyPI wheel of 50 KB)")
endif()

function(sluice_static_library target file)
  find_library(LIB_${target} NAMES lib${file}.a REQUIRED)
  add_library(${target} INTERFACE)
  target_link_libraries(${target} INTERFACE ${LIB_${target}})
endfunction()

sluice_static_library(tp_pcre2 pcre2-8)
sluice_static_library(tp_utf8proc utf8proc)
sluice_static_library(tp_yaml yaml-cpp)
sluice_static_library(tp_nghttp2 nghttp2)
target_compile_definitions(tp_nghttp2 INTERFACE NGHTTP2_STATICLIB)
sluice_static_library(tp_hwloc hwloc)
add_library(tp_without_udev STATIC ${CMAKE_SOURCE_DIR}/cmake/hwloc_without_udev.cc)
target_link_libraries(tp_hwloc INTERFACE tp_without_udev m ${CMAKE_DL_LIBS})
add_library(tp_fmt STATIC ${CMAKE_SOURCE_DIR}/cmake/fmt.cc)
target_compile_definitions(tp_fmt PUBLIC SPDLOG_FMT_EXTERNAL)
target_compile_definitions(tp_pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8 PCRE2_STATIC)
target_compile_definitions(tp_utf8proc INTERFACE UTF8PROC_STATIC)

# Third-party sources are compiled without our warnings.
add_library(tp_simdjson STATIC ${TP}/pysimdjson/simdjson/simdjson.cpp)
target_include_directories(tp_simdjson SYSTEM PUBLIC ${TP}/pysimdjson/simdjson)
target_compile_options(tp_simdjson PRIVATE -w)

set(L ${TP}/llama_cpp_python)
add_library(tp_jinja STATIC
  ${L}/common/json.cpp ${L}/common/unicode.cpp ${L}/common/jinja/lexer.cpp ${L}/common/jinja/parser.cpp
  ${L}/common/jinja/runtime.cpp ${L}/common/jinja/string.cpp ${L}/common/jinja/value.cpp)
target_include_directories(tp_jinja SYSTEM PUBLIC ${L}/common PRIVATE ${L}/vendor ${TP}/shim)
# A template may compute with any numbers: overflow wraps, and is not the sanitizers' business.
target_compile_options(tp_jinja PRIVATE -w -fwrapv -fno-sanitize=float-cast-overflow)
target_compile_definitions(tp_jinja PRIVATE NDEBUG)  # its assertions can be reached by a bad template

# xgrammar's C++ core, not its Python module nor its own build (which wants link-time optimisation). Its hot loops are
# table walks that -O1 compiles as well as -O2, in two thirds of the time.
set(X ${TP}/xgrammar)
file(GLOB_RECURSE xgrammar_sources CONFIGURE_DEPENDS ${X}/cpp/*.cc)
add_library(tp_xgrammar STATIC ${xgrammar_sources})
target_include_directories(tp_xgrammar SYSTEM PUBLIC ${X}/include ${X}/3rdparty/dlpack/include
  PRIVATE ${X}/3rdparty/picojson)
target_compile_options(tp_xgrammar PRIVATE -w -O1 -g0)
if(SLUICE_SANITIZE)
  target_compile_options(tp_xgrammar PRIVATE -fno-sanitize=undefined)  # its hashes wrap
endif()
target_compile_definitions(tp_xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_LOG_CUSTOMIZE=1)

if(SLUICE_TESTS)
  find_package(GTest REQUIRED)
endif()
