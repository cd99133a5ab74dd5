// The folders of the disk tier (disk_thread.h) below one path, one for each model and layout: which are in use,
// and which give way.
#pragma once

#include <cstddef>
#include <string>

#include "base/sha256.h"

namespace sluice {

// Twelve digits tell identities apart; the headers of the files in it have all of it.
std::string disk_folder_name(const Sha256& identity);

// Holds a folder while a server has it open, so that none deletes it, and marks it as used now. Made where it
// is missing; that it cannot be made shows at the first write.
class OpenFolder {
 public:
  explicit OpenFolder(const std::string& folder);
  OpenFolder(const OpenFolder&) = delete;
  ~OpenFolder();

 private:
  int fd_ = -1;
};

// Deletes the blocks of other folders below `path` that no server has open, folder by folder, the one that was
// not used for the longest first, until what they and `own` have is at most `most_bytes`. Files of other names
// are left alone, and so are folders that have such. Returns the folders deleted.
int remove_old_folders(const std::string& path, const std::string& own, size_t most_bytes);

}  // namespace sluice
