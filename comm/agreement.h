// SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other and decide alike: whether everyone got through a phase of the work, and whether
// everyone was told the same. All of it is host memory: give Communicator::host(). The caller waits.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace lockstep {

// Collective. `bytes` of every rank, by rank.
void gather_bytes(Communicator& communicator, const void* mine, void* all, std::size_t bytes);

// Collective. Every rank's value, by rank.
template <typename T>
std::vector<T> gather_values(Communicator& communicator, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(static_cast<std::size_t>(communicator.size()));
  gather_bytes(communicator, &value, values.data(), sizeof(T));
  return values;
}

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
template <typename E>
[[noreturn]] void throw_agreed(E error) {
  error.set_agreed();
  throw error;
}

}  // namespace lockstep
