// SPDX-License-Identifier: Apache-2.0
//
// DamageLog: counts samples that are damaged or undecodable but do not end the job. Each is counted once,
// however often it is read. The first five are logged as warnings; later, their number at powers of ten.
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace lockstep {

class DamageLog {
 public:
  // fate: what happens to such samples, for the log line with their number: "left out of their batches".
  explicit DamageLog(std::string fate) : fate_(std::move(fate)) {}

  // message: the whole line, with the sample's name and what is wrong with it.
  void add(std::int64_t sample, std::string_view message);
  std::int64_t count() const;

 private:
  std::string fate_;
  mutable std::mutex mutex_;
  std::unordered_set<std::int64_t> samples_;
};

}  // namespace lockstep
