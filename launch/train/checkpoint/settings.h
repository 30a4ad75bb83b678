// SPDX-License-Identifier: Apache-2.0
//
// When a run saves checkpoints, and which of them it keeps.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

enum class CheckpointErrors { warn, stop };
inline constexpr std::string_view kCheckpointErrorsWords[] = {"warn", "stop"};
constexpr std::span<const std::string_view> words_of(CheckpointErrors) { return kCheckpointErrorsWords; }

struct CheckpointSettings {
  std::int64_t every = 0;  // steps; 0: not by number of steps
  double minutes = 15;     // 0: not by time
  std::int64_t keep = 2;   // the newest ones; the one with the best test accuracy stays, too
  double grace_seconds = 60;
  CheckpointErrors errors = CheckpointErrors::warn;

  // True if checkpoints are written without a request.
  bool regular() const { return every > 0 || minutes > 0; }
};

}  // namespace lockstep
