#include "tensor/cuda/linear/cublaslt_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include <string>
#include <vector>

namespace sluice::cuda {
namespace {

constexpr const char* kName = "libcublasLt.so.13";
constexpr size_t kOldest = 130000;

// Where toolkits and the CUDA wheels of pip put it, behind the loader's own path.
constexpr const char* kFolders[] = {
    "/usr/local/cuda/lib64",
    "/usr/local/cuda-13*/lib64",
    "/opt/cuda/lib64",
    "/usr/local/lib/python3*/*-packages/nvidia/cu13/lib",
    "/usr/lib/python3*/*-packages/nvidia/cu13/lib",
    "/usr/lib/python3/*-packages/nvidia/cu13/lib",
    "/opt/*/lib/python3*/site-packages/nvidia/cu13/lib",
    "/opt/*/.venv/lib/python3*/site-packages/nvidia/cu13/lib",
};

std::vector<std::string> candidates() {
  std::vector<std::string> paths = {kName};
  for (const char* folder : kFolders) {
    glob_t found{};
    if (glob(fmt::format("{}/{}", folder, kName).c_str(), 0, nullptr, &found) == 0)
      for (size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
    globfree(&found);
  }
  return paths;
}

template <typename F>
void find(void* library, const char* name, F& function, std::string& missing) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function) missing += fmt::format(" {}", name);
}

std::string find_all(void* handle, CublasLtLibrary& library) {
  std::string missing;
  find(handle, "cublasLtGetVersion", library.version, missing);
  find(handle, "cublasLtGetStatusString", library.status_string, missing);
  find(handle, "cublasLtCreate", library.create, missing);
  find(handle, "cublasLtDestroy", library.destroy, missing);
  find(handle, "cublasLtMatmul", library.matmul, missing);
  find(handle, "cublasLtMatmulAlgoGetHeuristic", library.heuristic, missing);
  find(handle, "cublasLtMatmulDescCreate", library.desc_create, missing);
  find(handle, "cublasLtMatmulDescDestroy", library.desc_destroy, missing);
  find(handle, "cublasLtMatmulDescSetAttribute", library.desc_set, missing);
  find(handle, "cublasLtMatrixLayoutCreate", library.layout_create, missing);
  find(handle, "cublasLtMatrixLayoutDestroy", library.layout_destroy, missing);
  find(handle, "cublasLtMatrixLayoutSetAttribute", library.layout_set, missing);
  find(handle, "cublasLtMatmulPreferenceCreate", library.preference_create, missing);
  find(handle, "cublasLtMatmulPreferenceDestroy", library.preference_destroy, missing);
  find(handle, "cublasLtMatmulPreferenceSetAttribute", library.preference_set, missing);
  return missing;
}

Result<CublasLtLibrary> open() {
  const auto unusable = [](std::string why) {
    return Error{ErrorCode::kUnsupported, std::move(why), "device"};
  };
  for (const std::string& path : candidates()) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) continue;
    CublasLtLibrary library;
    if (const std::string missing = find_all(handle, library); !missing.empty())
      return unusable(fmt::format("{} is not cuBLASLt of CUDA 13: it lacks{}", path, missing));
    if (library.version() < kOldest)
      return unusable(fmt::format("{} is cuBLASLt {}.{}, but 13.0 is needed: install CUDA 13's", path,
                                  library.version() / 10000, library.version() / 100 % 100));
    return library;
  }
  return unusable(
      fmt::format("{} (cuBLASLt of CUDA 13) is not on the loader's path, nor in {}: install the CUDA 13 "
                  "toolkit or pip's nvidia-cublas, and put its folder into LD_LIBRARY_PATH if it lies "
                  "elsewhere",
                  kName, fmt::join(kFolders, ", ")));
}

}  // namespace

Result<const CublasLtLibrary*> open_cublaslt() {
  static const Result<CublasLtLibrary> opened = open();
  if (!opened) return opened.error();
  return &*opened;
}

}  // namespace sluice::cuda
