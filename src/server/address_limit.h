// How many connections each address has open: one IPv4 address, or one IPv6 /64, which is what one customer
// gets. Loopback is not counted: it is a proxy, or this machine's owner. Any thread.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace sluice {

class AddressLimit {
 public:
  // What an address is counted under; 0: it is not counted.
  static uint64_t key_of(const boost::asio::ip::address& address) {
    if (address.is_loopback() || address.is_unspecified()) return 0;
    if (address.is_v4()) return uint64_t(address.to_v4().to_uint()) | uint64_t{1} << 63;
    if (address.to_v6().is_v4_mapped())
      return key_of(boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6()));
    uint64_t prefix = 0;
    const auto bytes = address.to_v6().to_bytes();
    for (size_t i = 0; i < 8; ++i) prefix = prefix << 8 | bytes[i];
    return prefix;
  }

  // False: it has `most` already. Each true needs a `leave`.
  bool enter(uint64_t key, int most) {
    if (key == 0) return true;
    std::lock_guard lock(mutex_);
    int& open = open_[key];
    if (open >= most) return false;
    ++open;
    return true;
  }
  void leave(uint64_t key) {
    if (key == 0) return;
    std::lock_guard lock(mutex_);
    const auto found = open_.find(key);
    if (found != open_.end() && --found->second == 0) open_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, int> open_;  // guarded by mutex_; as large as there are connections
};

}  // namespace sluice
