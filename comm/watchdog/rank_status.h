// SPDX-License-Identifier: Apache-2.0
//
// RankStatus: the content of a rank's heartbeat: where the rank is, and what it waits for. The watchdog's
// thread makes it, whatever other threads do.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// A GPU's progress in the steps enqueued on it.
struct DevicePlace {
  std::int64_t step = 0;         // the first unfinished one, from 1; 0: none, or a CPU
  bool behind_backward = false;  // its backward pass is done: the rest waits for other ranks

  auto operator<=>(const DevicePlace&) const = default;
};

struct RankStatus {
  std::int32_t rank = 0;
  std::int32_t process = 0;
  std::int64_t step = 0;  // from 1; 0: none
  // How long the others may hear nothing from it.
  std::int64_t patience_ms = 0;
  std::int64_t waited_ms = 0;  // in `waits_in`
  bool overdue = false;        // a wait or a step of it exceeds the timeout
  DevicePlace device;
  std::string host;
  std::string waits_in;      // a collective that it has begun and not finished; empty: none
  std::string last;          // the collective that it finished last
  std::string overdue_text;  // why; empty: not overdue

  bool operator==(const RankStatus&) const = default;
};

// Bytes for ranks of one build on machines of one kind.
std::string encode(const RankStatus& status);
// Empty if the bytes are not an encoded status.
std::optional<RankStatus> decode_status(std::string_view bytes);

}  // namespace lockstep
