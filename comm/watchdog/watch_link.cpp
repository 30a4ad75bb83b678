// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog/watch_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/error.h"
#include "core/system/host_name.h"
#include "core/text/text.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestMessage = std::size_t{1} << 20;
constexpr std::size_t kMostWaiting = std::size_t{4} << 20;
constexpr std::chrono::seconds kAnswer{2};

struct WordHeader {
  std::uint32_t length;
  WatchWord word;
};

std::string new_secret() {
  std::array<unsigned char, 16> bytes = {};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw IoError("the system returned no random numbers");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

constexpr const char* kLoopback = "127.0.0.1";

// True if a new descriptor leaves too few for the files that this process opens. The system gives the lowest
// free descriptor, so a high one shows that those below it are in use.
bool is_needed_for_files(int descriptor) {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
         static_cast<rlim_t>(descriptor + MeetingPoint::kFreeDescriptors) >= limit.rlim_cur;
}

// Waits for one of `events`. Returns false at the deadline, or if meanwhile() returns false.
bool wait_for_events(int descriptor, short events, const std::function<bool()>& meanwhile,
                     std::chrono::steady_clock::time_point deadline) {
  while (std::chrono::steady_clock::now() < deadline && meanwhile()) {
    pollfd ready = {.fd = descriptor, .events = events, .revents = 0};
    if (poll(&ready, 1, 20) == 1) return true;
  }
  return false;
}

// A connected socket, or -1.
int connect_socket(const std::string& host, int port, const std::function<bool()>& meanwhile) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return -1;
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return -1;
  int failed = connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
  if (failed == EINPROGRESS) {
    socklen_t length = sizeof(failed);
    if (!wait_for_events(descriptor, POLLOUT, meanwhile, std::chrono::steady_clock::now() + kAnswer) ||
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &failed, &length) != 0)
      failed = ETIMEDOUT;
  }
  if (failed == 0) return descriptor;
  close(descriptor);
  return -1;
}

bool is_welcomed(WatchLink& link, const std::string& secret, const std::function<bool()>& meanwhile) {
  const auto deadline = std::chrono::steady_clock::now() + kAnswer;
  while (!link.ended() && wait_for_events(link.descriptor(), POLLIN, meanwhile, deadline)) {
    for (const WatchMessage& message : link.listen())
      return message.word == WatchWord::welcome && message.text == secret;
  }
  return false;
}

}  // namespace

WatchLink::~WatchLink() {
  if (descriptor_ >= 0) close(descriptor_);
}

WatchLink::WatchLink(WatchLink&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      ended_(other.ended_),
      in_(std::move(other.in_)),
      out_(std::move(other.out_)) {}

WatchLink& WatchLink::operator=(WatchLink&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(ended_, other.ended_);
  in_.swap(other.in_);
  out_.swap(other.out_);
  return *this;
}

void WatchLink::say(WatchWord word, std::string_view text) {
  if (ended_) return;
  // The receiver does not read. The message is dropped: the newest status counts, and it will be sent again.
  if (out_.size() > kMostWaiting) return;
  text = text.substr(0, kLongestMessage);  // the receiver would end the link
  const WordHeader header{static_cast<std::uint32_t>(text.size()), word};
  out_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  out_.append(text);
  push();
}

void WatchLink::push() {
  while (!out_.empty()) {
    const ssize_t sent = send(descriptor_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      ended_ = ended_ || (errno != EAGAIN && errno != EWOULDBLOCK);
      return;
    }
    out_.erase(0, static_cast<std::size_t>(sent));
  }
}

void WatchLink::receive(std::size_t most_bytes) {
  std::array<char, 65536> bytes;  // NOLINT: written before it is read
  while (most_bytes > 0) {
    const ssize_t got = recv(descriptor_, bytes.data(), std::min(bytes.size(), most_bytes), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ended_ = ended_ || (errno != EAGAIN && errno != EWOULDBLOCK);
    if (got == 0) ended_ = true;
    if (got <= 0) break;
    in_.append(bytes.data(), static_cast<std::size_t>(got));
    most_bytes -= static_cast<std::size_t>(got);
  }
}

std::vector<WatchMessage> WatchLink::listen(std::size_t most_bytes) {
  std::vector<WatchMessage> messages;
  push();
  receive(most_bytes);
  WordHeader header = {};
  std::size_t at = 0;
  while (in_.size() - at >= sizeof(header)) {
    std::memcpy(&header, in_.data() + at, sizeof(header));
    if (header.length > kLongestMessage || header.word > WatchWord::end) {
      ended_ = true;
      at = in_.size();
      break;
    }
    if (in_.size() - at - sizeof(header) < header.length) break;
    messages.push_back({header.word, in_.substr(at + sizeof(header), header.length)});
    at += sizeof(header) + header.length;
  }
  in_.erase(0, at);
  return messages;
}

Stranger::Is Stranger::hear(const std::string& secret, Clock::time_point now) {
  const std::vector<WatchMessage> said = link_.listen(kMostBytes - link_.unread_bytes());
  if (said.empty()) {
    const bool may_go_on = !link_.ended() && link_.unread_bytes() < kMostBytes && now < until_;
    return may_go_on ? Is::unknown : Is::refused;
  }
  const std::optional<int> rank = rank_of_hello(said.front(), secret);
  // A rank sends nothing else before it is welcomed.
  if (!rank || said.size() > 1 || link_.unread_bytes() > 0) return Is::refused;
  rank_ = *rank;
  link_.say(WatchWord::welcome, secret);
  return Is::known;
}

MeetingPoint::MeetingPoint(std::span<const std::string> addresses) : secret_(new_secret()) {
  for (const std::string& address : addresses) listen_at(address);
  if (sockets_.empty()) {
    throw IoError(fmt::format("cannot listen at {}: {}", fmt::join(addresses, ", "),
                              std::generic_category().message(errno)));
  }
}

void MeetingPoint::listen_at(const std::string& text) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  if (inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) return;
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return;
  socklen_t length = sizeof(address);
  auto* place = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor, place, length) == 0 && ::listen(descriptor, 1024) == 0 &&
      getsockname(descriptor, place, &length) == 0) {
    sockets_.push_back({descriptor, fmt::format("{}:{}", text, ntohs(address.sin_port))});
    return;
  }
  const int error = errno;
  close(descriptor);
  errno = error;
}

MeetingPoint::~MeetingPoint() {
  for (const Socket& socket : sockets_) close(socket.descriptor);
}

std::vector<int> MeetingPoint::descriptors() const {
  std::vector<int> all;
  // Connections without a free descriptor wait for the next call, and must not keep this thread busy.
  if (!out_of_descriptors_)
    for (const Socket& socket : sockets_) all.push_back(socket.descriptor);
  for (const Stranger& stranger : strangers_) all.push_back(stranger.descriptor());
  return all;
}

std::vector<MeetingPoint::Guest> MeetingPoint::admit(Stranger::Clock::time_point now) {
  std::vector<Guest> guests;
  for (Stranger& stranger : std::exchange(strangers_, {})) hear(std::move(stranger), now, guests);
  out_of_descriptors_ = false;
  for (const Socket& socket : sockets_) accept_all(socket, now, guests);
  return guests;
}

void MeetingPoint::hear(Stranger stranger, Stranger::Clock::time_point now, std::vector<Guest>& guests) {
  const Stranger::Is is = stranger.hear(secret_, now);
  if (is == Stranger::Is::known) guests.push_back({stranger.rank(), stranger.take_link()});
  if (is == Stranger::Is::unknown) strangers_.push_back(std::move(stranger));
  if (strangers_.size() > kMostStrangers) strangers_.erase(strangers_.begin());
}

// Accepts at most kMostStrangers: the caller has other work.
void MeetingPoint::accept_all(const Socket& socket, Stranger::Clock::time_point now,
                              std::vector<Guest>& guests) {
  for (std::size_t count = 0; count < kMostStrangers; ++count) {
    const int descriptor = accept4(socket.descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) {
      out_of_descriptors_ = out_of_descriptors_ || errno == EMFILE || errno == ENFILE;
      return;
    }
    if (is_needed_for_files(descriptor))
      close(descriptor);
    else
      hear(Stranger(descriptor, now), now, guests);
  }
}

std::string MeetingPoint::way() const {
  std::string text = fmt::format("{} {}", secret_, host_name());
  for (const Socket& socket : sockets_) text += " " + socket.address;
  return text;
}

std::optional<WatchLink> connect_to(const std::string& way, int rank,
                                    const std::function<bool()>& meanwhile) {
  std::istringstream words(way);
  std::string secret, host, place;
  words >> secret >> host;
  while (words >> place) {
    const std::size_t colon = place.find(':');
    if (colon == std::string::npos) continue;
    const std::string address = place.substr(0, colon);
    if (address == kLoopback && host != host_name()) continue;
    const int descriptor = connect_socket(address, std::atoi(place.c_str() + colon + 1), meanwhile);
    if (descriptor < 0) continue;
    WatchLink link(descriptor);
    link.say(WatchWord::hello, fmt::format("{} {}", secret, rank));
    if (is_welcomed(link, secret, meanwhile)) return link;
  }
  return std::nullopt;
}

std::optional<int> rank_of_hello(const WatchMessage& message, const std::string& secret) {
  if (message.word != WatchWord::hello || !message.text.starts_with(secret + " ")) return std::nullopt;
  const auto rank = number_from<int>(std::string_view(message.text).substr(secret.size() + 1));
  return rank && *rank >= 0 ? rank : std::nullopt;
}

}  // namespace lockstep
