// SPDX-License-Identifier: Apache-2.0
//
// The watchdog's port: up to 8 MiB from a foreign process and from a rank. The reading thread must survive
// them and spend little processor time.
#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/watchdog/rank_status.h"
#include "comm/watchdog/watch_link.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

const std::string kSecret = "0123456789abcdef0123456789abcdef";
constexpr std::size_t kMostSent = std::size_t{8} << 20;
constexpr double kMostSeconds = 10;  // for 8 MiB, with sanitizers: a million messages of a rank take 2 s

double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Both ends of a connection.
struct Wire {
  Wire() {
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()) == 0,
            "cannot create a socket pair");
  }
  ~Wire() {
    for (const int end : ends)
      if (end >= 0) close(end);
  }
  // Sends as many bytes as fit. Returns false if none fits or the other end is closed.
  bool feed(std::string_view& bytes) {
    const ssize_t sent = send(ends[1], bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
    return true;
  }
  int take_end() { return std::exchange(ends[0], -1); }

  std::array<int, 2> ends = {-1, -1};
};

void try_stranger(std::string_view bytes) {
  Wire wire;
  const auto begin = Stranger::Clock::now();
  Stranger stranger(wire.take_end(), begin);
  const bool shows_it = bytes.find(kSecret) != std::string_view::npos;
  for (int turn = 0; turn < 100; ++turn) {
    wire.feed(bytes);
    const Stranger::Is is = stranger.hear(kSecret, begin);
    require(is != Stranger::Is::known || shows_it, "a connection without the secret was accepted");
    if (is != Stranger::Is::unknown) return;
    if (bytes.empty()) break;
  }
  require(bytes.empty(), "a foreign process must not send without limit");
  require(stranger.hear(kSecret, begin + Stranger::kPatience) == Stranger::Is::refused,
          "a foreign process must not wait without limit");
}

void try_rank(std::string_view bytes) {
  Wire wire;
  WatchLink link(wire.take_end());
  while (!link.ended()) {
    const bool fed = !bytes.empty() && wire.feed(bytes);
    const std::vector<WatchMessage> messages = link.listen();
    for (const WatchMessage& message : messages) {
      rank_of_hello(message, kSecret);
      decode_status(message.text);
    }
    if (!fed && messages.empty()) return;
  }
}

std::string message(WatchWord word, std::string_view text) {
  const std::uint32_t length = static_cast<std::uint32_t>(text.size());
  std::string bytes(2 * sizeof(length), '\0');
  std::copy_n(reinterpret_cast<const char*>(&length), sizeof(length), bytes.data());
  std::copy_n(reinterpret_cast<const char*>(&word), sizeof(word), bytes.data() + sizeof(length));
  return bytes.append(text);
}

}  // namespace

// The first byte is the number of repetitions of the rest, as a power of two.
void try_input(std::string_view input) {
  Parts parts(input);
  const std::size_t times = std::size_t{1} << (parts.byte() % 24);
  const std::string_view once = parts.rest();
  std::string sent;
  while (sent.size() < times * once.size() && sent.size() < kMostSent) sent += once;
  const double begin = thread_seconds();
  try_stranger(sent);
  try_rank(sent);
  const double seconds = thread_seconds() - begin;
  require(seconds < kMostSeconds,
          fmt::format("{} bytes must be read within {} s of processor time, not {:.1f} s", sent.size(),
                      kMostSeconds, seconds));
}

std::vector<std::string> seeds() {
  const std::string once(1, '\0'), often(1, '\x17');
  const std::string status = encode({.rank = 1, .process = 2, .host = "node1", .last = "barrier 3"});
  return {once + message(WatchWord::hello, kSecret + " 3"),
          once + message(WatchWord::hello, kSecret + " -3") + "x",
          once + message(WatchWord::status, status) + message(WatchWord::goodbye, ""),
          once + message(WatchWord::evidence, std::string(5000, 'x')),
          once + message(static_cast<WatchWord>(77), "?"),
          often + std::string(1, '\0'),
          often + message(WatchWord::status, status),
          once + std::string("\xff\xff\xff\xff", 4)};
}

}  // namespace lockstep::fuzz
