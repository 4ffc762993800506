#include "cluster/manifests/quantity.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Quantity, IsWrittenInTheLargestUnitThatIsWhole) {
  EXPECT_EQ(count_quantity(0), "0");
  EXPECT_EQ(count_quantity(248), "248");
  EXPECT_EQ(count_quantity(1000), "1k");
  EXPECT_EQ(count_quantity(1500), "1500");
  EXPECT_EQ(count_quantity(64'000'000), "64M");
  EXPECT_EQ(bytes_quantity(int64_t{474419} << 20), "474419Mi");
  EXPECT_EQ(bytes_quantity(int64_t{480} << 30), "480Gi");
  EXPECT_EQ(bytes_quantity(int64_t{2} << 40), "2Ti");
  EXPECT_EQ(bytes_quantity(1000), "1000");
}

TEST(Quantity, IsReadAsItIsWritten) {
  for (const int64_t number : {1, 999, 1000, 62'000, 1'000'000'007}) {
    const Value text(count_quantity(number));
    EXPECT_EQ(quantity(&text), static_cast<double>(number)) << number;
  }
  for (const int64_t bytes : {int64_t{1} << 20, int64_t{463} << 30, (int64_t{5} << 40) + 1}) {
    const Value text(bytes_quantity(bytes));
    EXPECT_EQ(quantity(&text), static_cast<double>(bytes)) << bytes;
  }
}

}  // namespace
}  // namespace tessera
