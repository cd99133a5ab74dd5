#include "server/cache_salt.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <random>

namespace sluice {

namespace {

using Secret = std::array<unsigned char, XXH3_SECRET_DEFAULT_SIZE>;

Secret random_secret() {
  Secret secret;
  std::random_device random;
  for (unsigned char& byte : secret) byte = static_cast<unsigned char>(random());
  return secret;
}

}  // namespace

std::array<uint64_t, 2> cache_salt_digest(std::string_view word) {
  static const Secret secret = random_secret();
  if (word.empty()) return {};
  const XXH128_hash_t hash = XXH3_128bits_withSecret(word.data(), word.size(), secret.data(), secret.size());
  if (hash.low64 == 0 && hash.high64 == 0) return {1, 0};
  return {hash.low64, hash.high64};
}

}  // namespace sluice
