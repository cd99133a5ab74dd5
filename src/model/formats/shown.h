// Text out of an untrusted file, made fit for one line of a message.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice {

// In quotes, at most 80 bytes, anything but printable ASCII escaped.
std::string shown(std::string_view text);

// What stands in place of a model file surprisingly often, for the message that refuses it: "a Git LFS pointer,
// not the file itself: run `git lfs pull`", "an HTML page", "an archive". Empty if it is none of these.
std::string mistaken_file(std::span<const std::byte> bytes);

}  // namespace sluice
