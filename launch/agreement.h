// SPDX-License-Identifier: Apache-2.0
//
// Decisions all ranks take alike before the first step: whether everyone got through a phase of the start,
// and whether everyone was told the same. All of it is host memory: give the communicator over MPI.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace lockstep {

// Collective. Root's text on every rank.
std::string broadcast_text(Communicator& communicator, std::string text, int root);

// Collective. Every rank's text, by rank.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

// Collective. Runs `work` on every rank; when it threw on any of them, all throw the error of the lowest
// failing rank together (Error::agreed), naming that rank unless every rank failed. What is no Error counts
// as as_error says. work must not communicate.
void run_agreed(Communicator& communicator, const std::function<void()>& work);

// Which ranks' texts differ from rank 0's.
struct Difference {
  std::vector<int> ranks;  // ascending; empty: none
  std::string reference;   // rank 0's text
  std::string text;        // of the first of these ranks
};

// Collective. The same on every rank.
Difference find_difference(Communicator& communicator, const std::string& text);

// Itself if it is one; a MemoryError for std::bad_alloc; an internal failure (exit_code::failed) for any
// other.
Error as_error(const std::exception& exception);

// Throws what every rank throws alike.
[[noreturn]] void throw_agreed(Error error);

// Collective. Throws an agreed ConfigError on all ranks when this rank's configuration text (Config's TOML)
// differs from rank 0's on any rank, naming the ranks and the first differing key.
void require_same_config(Communicator& communicator, const std::string& toml);

}  // namespace lockstep
