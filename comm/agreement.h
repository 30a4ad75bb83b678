// SPDX-License-Identifier: Apache-2.0
//
// Agreements between ranks: gathering values, failing together, and finding ranks whose text differs. All
// data is host memory: pass Communicator::host(). Every function waits for its result.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace lockstep {

// Collective. Gathers `bytes` bytes of every rank into `all`, in rank order.
void gather_bytes(Communicator& communicator, const void* mine, void* all, std::size_t bytes);

// Collective. Returns every rank's value, in rank order.
template <typename T>
std::vector<T> gather_values(Communicator& communicator, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> values(static_cast<std::size_t>(communicator.size()));
  gather_bytes(communicator, &value, values.data(), sizeof(T));
  return values;
}

// Collective. Returns root's text on every rank.
std::string broadcast_text(Communicator& communicator, std::string text, int root);

// Collective. Returns every rank's text, in rank order.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

// Collective. Runs `work` on every rank. If it throws on any rank, every rank throws the error of the lowest
// failing rank (Error::agreed); the message names the failing ranks unless all failed. as_error() converts
// other exceptions. work must not communicate.
void run_agreed(Communicator& communicator, const std::function<void()>& work);

// The ranks whose value is another one, ascending.
template <typename T>
std::vector<int> ranks_without(const T& value, const std::vector<T>& values) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < values.size(); ++rank)
    if (values[rank] != value) ranks.push_back(static_cast<int>(rank));
  return ranks;
}

// The ranks whose texts differ from rank 0's.
struct Difference {
  std::vector<int> ranks;  // ascending; empty: none
  std::string reference;   // rank 0's text
  std::string text;        // text of the lowest of these ranks
};

// Collective. Returns the same result on every rank.
Difference find_difference(Communicator& communicator, const std::string& text);

// Returns the exception itself if it is an Error, a MemoryError for std::bad_alloc, an IoError if standard
// output cannot be written, else an Error with exit_code::failed.
Error as_error(const std::exception& exception);

// Marks an error that every rank throws as agreed, and throws it.
template <typename E>
[[noreturn]] void throw_agreed(E error) {
  error.set_agreed();
  throw error;
}

}  // namespace lockstep
