// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog/watch_link.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <sstream>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/error.h"
#include "core/host_name.h"

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
    throw IoError("the system gives no random numbers");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// IPv4 of this machine, but for its own to itself.
std::vector<std::string> own_addresses() {
  std::vector<std::string> texts;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return texts;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if ((each->ifa_flags & IFF_UP) == 0 || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    sockaddr_in address = {};
    std::memcpy(&address, each->ifa_addr, sizeof(address));
    std::array<char, INET_ADDRSTRLEN> text = {};
    if (inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size()) != nullptr)
      texts.emplace_back(text.data());
  }
  freeifaddrs(list);
  return texts;
}

// Until something of `events` has happened; false: not in time.
bool wait_for_events(int descriptor, short events, const std::function<bool()>& meanwhile) {
  const auto deadline = std::chrono::steady_clock::now() + kAnswer;
  while (std::chrono::steady_clock::now() < deadline && meanwhile()) {
    pollfd ready = {.fd = descriptor, .events = events, .revents = 0};
    if (poll(&ready, 1, 20) == 1) return true;
  }
  return false;
}

// Connected, or -1.
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
    if (!wait_for_events(descriptor, POLLOUT, meanwhile) ||
        getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &failed, &length) != 0)
      failed = ETIMEDOUT;
  }
  if (failed == 0) return descriptor;
  close(descriptor);
  return -1;
}

bool is_welcomed(WatchLink& link, const std::string& secret, const std::function<bool()>& meanwhile) {
  while (!link.ended() && wait_for_events(link.descriptor(), POLLIN, meanwhile)) {
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
  // Nobody takes what is said: the newest status is what counts, and it will be said again.
  if (out_.size() > kMostWaiting) return;
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

std::vector<WatchMessage> WatchLink::listen() {
  std::vector<WatchMessage> messages;
  push();
  std::array<char, 65536> bytes;  // NOLINT: written before it is read
  for (;;) {
    const ssize_t got = recv(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) ended_ = ended_ || (errno != EAGAIN && errno != EWOULDBLOCK);
    if (got == 0) ended_ = true;
    if (got <= 0) break;
    in_.append(bytes.data(), static_cast<std::size_t>(got));
  }
  WordHeader header = {};
  while (in_.size() >= sizeof(header)) {
    std::memcpy(&header, in_.data(), sizeof(header));
    if (header.length > kLongestMessage || header.word > WatchWord::end) {
      ended_ = true;
      in_.clear();
      break;
    }
    if (in_.size() < sizeof(header) + header.length) break;
    messages.push_back({header.word, in_.substr(sizeof(header), header.length)});
    in_.erase(0, sizeof(header) + header.length);
  }
  return messages;
}

MeetingPoint::MeetingPoint() : secret_(new_secret()) {
  const auto refuse = [this](const char* what) {
    const std::string words = std::generic_category().message(errno);
    if (descriptor_ >= 0) close(descriptor_);
    throw IoError(fmt::format("{}: {}", what, words));
  };
  descriptor_ = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor_ < 0) refuse("no socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (bind(descriptor_, any, length) != 0 || ::listen(descriptor_, 1024) != 0 ||
      getsockname(descriptor_, any, &length) != 0)
    refuse("no port to listen at");
  port_ = ntohs(address.sin_port);
}

MeetingPoint::~MeetingPoint() { close(descriptor_); }

std::optional<WatchLink> MeetingPoint::accept() {
  const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  return WatchLink(descriptor);
}

std::string MeetingPoint::way() const {
  std::string text = fmt::format("{} {} {}", secret_, host_name(), port_);
  for (const std::string& address : own_addresses()) text += " " + address;
  return text;
}

std::optional<WatchLink> connect_to(const std::string& way, int rank,
                                    const std::function<bool()>& meanwhile) {
  std::istringstream words(way);
  std::string secret, host, address;
  int port = 0;
  words >> secret >> host >> port;
  std::vector<std::string> addresses;
  if (host == host_name()) addresses.emplace_back("127.0.0.1");
  while (words >> address) addresses.push_back(address);
  for (const std::string& each : addresses) {
    const int descriptor = connect_socket(each, port, meanwhile);
    if (descriptor < 0) continue;
    WatchLink link(descriptor);
    link.say(WatchWord::hello, fmt::format("{} {}", secret, rank));
    if (is_welcomed(link, secret, meanwhile)) return link;
  }
  return std::nullopt;
}

std::optional<int> rank_of_hello(const WatchMessage& message, const std::string& secret) {
  if (message.word != WatchWord::hello || !message.text.starts_with(secret + " ")) return std::nullopt;
  int rank = -1;
  const char* end = message.text.data() + message.text.size();
  const auto read = std::from_chars(message.text.data() + secret.size() + 1, end, rank);
  if (read.ec != std::errc() || read.ptr != end || rank < 0) return std::nullopt;
  return rank;
}

}  // namespace lockstep
