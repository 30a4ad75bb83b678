// SPDX-License-Identifier: Apache-2.0
//
// CUDA_VISIBLE_DEVICES: the devices that a process sees, and their order. Each case runs in a new process.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/cuda_emulator/runtime_fixture.h"

namespace lockstep::emulator {
namespace {

// The devices that this process sees, by their indices on the machine: "2,0".
std::string seen() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaErrorNoDevice) return "none";
  std::string places;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties = {};
    cudaGetDeviceProperties(&properties, device);
    int place = 0;
    std::memcpy(&place, properties.uuid.bytes + 12, sizeof place);
    if (properties.pciBusID != place) return "a bus address that is not the device's";
    places += (places.empty() ? "" : ",") + std::to_string(place);
  }
  return places;
}

// The name of the device with this index.
std::string uuid(int place, std::size_t digits = 36) {
  std::string text = "656d756c-6174-6564-2047-50550" + std::to_string(place) + "000000";
  return "GPU-" + text.substr(0, digits);
}

struct Case {
  const char* name;
  std::string visible;
  std::string expected;
};

class VisibleDevicesDeathTest : public testing::TestWithParam<Case> {};

TEST_P(VisibleDevicesDeathTest, AreTheListedDevicesInOrder) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("LOCKSTEP_EMULATED_GPUS", "4", 1);
  setenv("CUDA_VISIBLE_DEVICES", GetParam().visible.c_str(), 1);
  EXPECT_EXIT(
      {
        std::fprintf(stderr, "sees %s.", seen().c_str());
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "sees " + GetParam().expected + "\\.");
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("LOCKSTEP_EMULATED_GPUS");
}

const Case kCases[] = {
    {"Order", "2,0", "2,0"},
    {"FirstInvalidIndexEndsTheList", "0,2,-1,1", "0,2"},
    {"IndexThatDoesNotExistEndsTheList", "1,4,2", "1"},
    {"WordsEndTheList", "3,all,1", "3"},
    {"EmptyItemEndsTheList", "3,,1", "3"},
    {"SpacesAndWordsAfterNumbers", " 3, 1gpu", "3,1"},
    {"Empty", "", "none"},
    {"NoDeviceByConvention", "-1", "none"},
    {"RepeatedDevice", "1,2,1", "none"},
    {"Uuids", uuid(2) + "," + uuid(1), "2,1"},
    {"ShortUuid", uuid(3, 26), "none"},  // a prefix of two UUIDs
    {"UuidThatIsLongEnough", uuid(3, 30), "3"},
    {"UuidOfNoDevice", uuid(1) + "," + uuid(9) + "," + uuid(0), "1"},
    {"UuidAfterAnIndex", "1," + uuid(0), "1"},
};
INSTANTIATE_TEST_SUITE_P(Lists, VisibleDevicesDeathTest, testing::ValuesIn(kCases),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace lockstep::emulator
