// SPDX-License-Identifier: Apache-2.0
#include "core/system/near_processors.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/temporary_folder.h"

namespace lockstep {
namespace {

std::vector<int> numbers_of(const cpu_set_t& processors) {
  std::vector<int> numbers;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(static_cast<std::size_t>(i), &processors)) numbers.push_back(i);
  return numbers;
}

TEST(NearProcessors, ListsOfLinuxAreParsed) {
  EXPECT_EQ(numbers_of(*parse_processors("0")), std::vector<int>{0});
  EXPECT_EQ(numbers_of(*parse_processors("0-3,8,10-11")), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  for (const char* text : {"", "x", "0-", "-3", "3-1", "0,", "0 1", "99999999999", "1024", "0-3x"})
    EXPECT_FALSE(parse_processors(text).has_value()) << text;
}

TEST(NearProcessors, AreTheLocalCpuListOfThePciDevice) {
  const TemporaryFolder temporary("near_processors");
  const std::filesystem::path root = temporary.path();
  const std::filesystem::path device = root / "bus/pci/devices/0000:3b:00.0";
  std::filesystem::create_directories(device);
  std::ofstream(device / "local_cpulist") << "4-5\n";
  EXPECT_EQ(numbers_of(*processors_near("0000:3b:00.0", root)), (std::vector<int>{4, 5}));
  EXPECT_FALSE(processors_near("0000:af:00.0", root).has_value());
  EXPECT_FALSE(processors_near("", root).has_value());
}

}  // namespace
}  // namespace lockstep
