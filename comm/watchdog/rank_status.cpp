// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog/rank_status.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::size_t kLongestText = 4096;

class StatusWriter {
 public:
  template <typename T>
  void operator()(const T& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void operator()(const std::string& text) {
    const auto length = static_cast<std::uint32_t>(std::min(text.size(), kLongestText));
    (*this)(length);
    bytes.append(text, 0, length);
  }
  std::string bytes;
};

class StatusReader {
 public:
  explicit StatusReader(std::string_view bytes) : left(bytes) {}
  template <typename T>
  void operator()(T& value) {
    if (!take(sizeof(T))) return;
    std::memcpy(&value, left.data(), sizeof(T));
    left.remove_prefix(sizeof(T));
  }
  void operator()(bool& value) {
    std::uint8_t byte = 0;
    (*this)(byte);
    value = byte == 1;
  }
  void operator()(std::string& text) {
    std::uint32_t length = 0;
    (*this)(length);
    if (length > kLongestText || !take(length)) return void(whole = false);
    text = left.substr(0, length);
    left.remove_prefix(length);
  }
  bool whole = true;
  std::string_view left;

 private:
  bool take(std::size_t bytes) { return whole = whole && left.size() >= bytes; }
};

template <typename Status, typename Visit>
void visit_members(Status& status, Visit& visit) {
  visit(status.rank);
  visit(status.process);
  visit(status.step);
  visit(status.patience_ms);
  visit(status.waited_ms);
  visit(status.overdue);
  visit(status.device.step);
  visit(status.device.behind_backward);
  visit(status.host);
  visit(status.waits_in);
  visit(status.last);
  visit(status.overdue_text);
}

}  // namespace

std::string encode(const RankStatus& status) {
  StatusWriter writer;
  visit_members(status, writer);
  return std::move(writer.bytes);
}

std::optional<RankStatus> decode_status(std::string_view bytes) {
  RankStatus status;
  StatusReader reader(bytes);
  visit_members(status, reader);
  if (!reader.whole || !reader.left.empty()) return std::nullopt;
  return status;
}

}  // namespace lockstep
