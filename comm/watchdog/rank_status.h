// SPDX-License-Identifier: Apache-2.0
//
// RankStatus: what a rank tells of itself in each of its heartbeats: where it stands, and what it waits for.
// Made by its watchdog's thread, whatever its other threads do.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

// How far a GPU has got with the steps that it was given.
struct DevicePlace {
  std::int64_t step = 0;         // the first that it is not through with, from 1; 0: none, or a CPU
  bool behind_backward = false;  // of that step: what is left waits for other ranks

  auto operator<=>(const DevicePlace&) const = default;
};

struct RankStatus {
  std::int32_t rank = 0;
  std::int32_t process = 0;
  std::int64_t step = 0;  // from 1; 0: in none
  // How long the others may wait for it and hear nothing of it.
  std::int64_t patience_ms = 0;
  std::int64_t waited_ms = 0;  // in `waits_in`
  bool overdue = false;        // it has waited, or been in a step, longer than it may
  DevicePlace device;
  std::string host;
  std::string waits_in;      // a collective that it is in and not through with; empty: none
  std::string last;          // the collective it was through with last
  std::string overdue_text;  // why; empty: not overdue

  bool operator==(const RankStatus&) const = default;
};

// For ranks of one program on machines of one kind.
std::string encode(const RankStatus& status);
// Nothing where the bytes are not one of these.
std::optional<RankStatus> decode_status(std::string_view bytes);

}  // namespace lockstep
