#include "model/checkpoint.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "model/checkpoint_formats.h"
#include "model/dummy_checkpoint.h"
#include "model/formats/shown.h"
#include "model/slots.h"

namespace sluice {

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path) {
  if (path.starts_with(kDummyPrefix)) return make_dummy_checkpoint(path.substr(kDummyPrefix.size()));
  struct stat st {};
  if (stat(path.c_str(), &st) != 0) {
    return Error{ErrorCode::kNotFound,
                 fmt::format("{}: no such file or folder; give a .gguf file or a Hugging Face folder", path)};
  }
  if (S_ISDIR(st.st_mode)) {
    std::string folder = path;
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    return open_folder_checkpoint(folder);
  }
  if (path.ends_with(".safetensors") || path.ends_with(".json")) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: is one file of a checkpoint; give the folder that holds config.json", path)};
  }
  return open_gguf_checkpoint(path);
}

Status check_slot_tensor(const std::string& path, std::string_view name, const Slot& slot,
                         const std::vector<int64_t>& shape, bool readable, std::string_view type) {
  std::vector<int64_t> want;
  if (slot.matrix) want.push_back(slot.rows);
  want.push_back(slot.cols);
  if (shape != want) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}: tensor {} has shape [{}], but the model's numbers ask for [{}]", path,
                             shown(name), fmt::join(shape, ", "), fmt::join(want, ", "))};
  }
  if (!readable) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("{}: tensor {} has type {}, which this version does not read; convert the "
                             "model to Q4_K_M, Q8_0 or BF16",
                             path, shown(name), shown(type))};
  }
  return {};
}

}  // namespace sluice
