// SPDX-License-Identifier: Apache-2.0
//
// Sets the values that nvml_stub.cpp reports for one test. The stub library reads them again at each call.
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "tests/temporary_folder.h"

namespace lockstep {

class NvmlStub {
 public:
  NvmlStub() { setenv("LOCKSTEP_NVML_STUB", file().c_str(), 1); }
  ~NvmlStub() { unsetenv("LOCKSTEP_NVML_STUB"); }

  // Sets a value, or an error with the key "key!". An empty value removes the key.
  void say(const std::string& key, const std::string& value) {
    value.empty() ? (void)told_.erase(key) : (void)(told_[key] = value);
    std::ofstream stream(file().string() + ".new");
    for (const auto& [name, text] : told_) stream << name << ' ' << text << '\n';
    stream.close();
    std::filesystem::rename(file().string() + ".new", file());
  }
  void say(const std::map<std::string, std::string>& all) {
    for (const auto& [key, value] : all) say(key, value);
  }
  // Sets the values of two typical devices: an H100 that trains, and a second one.
  void say_all() {
    say({{"driver", "580.65.06"},
         {"1.uuid", "GPU-one"},
         {"2.uuid", "GPU-two"},
         {"3.uuid", "MIG-three"},
         {"name", "NVIDIA H100 80GB HBM3"},
         {"3.name", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"},
         {"1.address", "0000:3b:00.0"},
         {"2.address", "0000:86:00.0"},
         {"1.bus_id", "00000000:3B:00.0"},
         {"2.bus_id", "00000000:86:00.0"},
         {"pstate", "0"},
         {"pcie.max", "5"},
         {"pcie.current", "4"},
         {"temperature", "61"},
         {"utilization.gpu", "97"},
         {"utilization.memory", "42"},
         {"memory.total", "85520809984"},   // 81559 MiB
         {"memory.reserved", "546308096"},  // 521 MiB
         {"memory.used", "10737418240"},    // 10240 MiB
         {"power", "654321"},
         {"energy", "123456789"},
         {"clock.sm", "1980"},
         {"clock.sm.most", "1980"},
         {"clock.memory", "2619"},
         {"reasons", "0x4"},
         {"pcie.sent", "2097"},
         {"pcie.received", "1048"},
         {"3.instance", "7"},
         {"3.memory.total", "10200547328"},
         {"3.memory.used", "1073741824"}});
  }

 private:
  std::filesystem::path file() const { return folder_.path() / "figures"; }

  TemporaryFolder folder_;
  std::map<std::string, std::string> told_;
};

}  // namespace lockstep
