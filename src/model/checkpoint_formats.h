// The two kinds of checkpoint behind open_checkpoint. Private to this room.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "model/checkpoint.h"

namespace sluice {

Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::string& path);
Result<std::unique_ptr<Checkpoint>> open_folder_checkpoint(const std::string& folder);

// That a tensor found for a slot can serve it. `shape` slowest first, `type` null if its type cannot be read.
struct Slot;
Status check_slot_tensor(const std::string& path, std::string_view name, const Slot& slot,
                         const std::vector<int64_t>& shape, bool readable, std::string_view type);

}  // namespace sluice
