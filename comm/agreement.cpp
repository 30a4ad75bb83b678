// SPDX-License-Identifier: Apache-2.0
#include "comm/agreement.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <optional>
#include <system_error>

#include "core/error.h"
#include "core/text/text.h"

namespace lockstep {

void gather_bytes(Communicator& communicator, const void* mine, void* all, std::size_t bytes) {
  communicator.complete(
      {.kind = CollectiveKind::all_gather, .dtype = DType::u8, .send = mine, .recv = all, .count = bytes});
}

std::string broadcast_text(Communicator& communicator, std::string text, int root) {
  auto length = static_cast<std::int32_t>(text.size());
  const auto from_root = [&](void* data, std::size_t bytes) {
    communicator.complete({.kind = CollectiveKind::broadcast, .root = root, .recv = data, .count = bytes});
  };
  from_root(&length, sizeof(length));
  text.resize(static_cast<std::size_t>(length));
  from_root(text.data(), text.size());
  return text;
}

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text) {
  const std::vector<std::int32_t> lengths =
      gather_values(communicator, static_cast<std::int32_t>(text.size()));
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string mine = text;
  mine.resize(longest);
  std::string all(longest * lengths.size(), '\0');
  gather_bytes(communicator, mine.data(), all.data(), longest);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(lengths[rank])));
  }
  return texts;
}

void run_agreed(Communicator& communicator, const std::function<void()>& work) {
  std::optional<Error> mine;
  try {
    work();
  } catch (const std::exception& exception) {
    mine = as_error(exception);
  }
  const std::vector<std::int32_t> codes =
      gather_values<std::int32_t>(communicator, mine ? mine->exit_code() : exit_code::done);
  const std::vector<int> failed = ranks_without(exit_code::done, codes);
  if (failed.empty()) return;

  const int first = failed.front();
  const std::string message = broadcast_text(communicator, mine ? mine->what() : "", first);
  const bool everybody = static_cast<int>(failed.size()) == communicator.size();
  const std::string where = everybody ? "" : named_ranks(failed) + ": ";
  throw_agreed(Error(codes[static_cast<std::size_t>(first)], where + message));
}

Difference find_difference(Communicator& communicator, const std::string& text) {
  Difference found{.reference = broadcast_text(communicator, text, 0)};
  found.ranks = ranks_without(1, gather_values(communicator, text == found.reference ? 1 : 0));
  if (!found.ranks.empty()) found.text = broadcast_text(communicator, text, found.ranks.front());
  return found;
}

Error as_error(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr)
    return MemoryError("the host is out of memory (std::bad_alloc)");
  // fmt::print throws it.
  if (const auto* error = dynamic_cast<const std::system_error*>(&exception);
      error != nullptr && std::ferror(stdout) != 0)
    return IoError(fmt::format("cannot write to standard output: {}", error->code().message()));
  return {exit_code::failed, exception.what()};
}

}  // namespace lockstep
