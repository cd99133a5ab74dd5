// Who shares a count of connections, and that each place taken is given back.
#include "server/address_limit.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

uint64_t key(const char* address) { return AddressLimit::key_of(boost::asio::ip::make_address(address)); }

TEST(AddressLimit, CountsAnIpv4AddressAndAnIpv6Network) {
  EXPECT_NE(key("192.0.2.1"), key("192.0.2.2"));
  EXPECT_EQ(key("192.0.2.1"), key("::ffff:192.0.2.1"));
  EXPECT_EQ(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::2"));
  EXPECT_NE(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
  EXPECT_NE(key("192.0.2.1"), 0u);
}

TEST(AddressLimit, DoesNotCountLoopback) {
  for (const char* local : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"})
    EXPECT_EQ(key(local), 0u) << local;
  AddressLimit limit;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.enter(0, 1));
}

TEST(AddressLimit, APlaceThatIsLeftCanBeTakenAgain) {
  AddressLimit limit;
  const uint64_t one = key("192.0.2.1"), other = key("192.0.2.2");
  EXPECT_TRUE(limit.enter(one, 2));
  EXPECT_TRUE(limit.enter(one, 2));
  EXPECT_FALSE(limit.enter(one, 2));
  EXPECT_TRUE(limit.enter(other, 2));
  limit.leave(one);
  EXPECT_TRUE(limit.enter(one, 2));
  EXPECT_FALSE(limit.enter(one, 2));
}

}  // namespace
}  // namespace sluice
