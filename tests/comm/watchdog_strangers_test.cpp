// SPDX-License-Identifier: Apache-2.0
//
// Foreign processes connect to a job's watchdogs. Without its secret they must not end the job, keep its
// watchdogs busy, or use up the descriptors that it needs for files.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/watchdog/watchdog.h"
#include "tests/comm/thread_ranks.h"

namespace lockstep {
namespace {

using std::chrono::seconds;

std::vector<int> own_descriptors() {
  std::vector<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string name = entry.path().filename();
    int number = -1;
    std::from_chars(name.data(), name.data() + name.size(), number);
    numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

bool is_listening(int descriptor) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  return getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0;
}

sockaddr_in place_of(int descriptor) {
  sockaddr_in place = {};
  socklen_t length = sizeof(place);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&place), &length) != 0)
    place.sin_family = AF_UNSPEC;
  return place;
}

// The addresses where this process listens for watchdogs.
std::vector<sockaddr_in> meeting_places() {
  std::vector<sockaddr_in> places;
  for (const int descriptor : own_descriptors())
    if (is_listening(descriptor) && place_of(descriptor).sin_family == AF_INET)
      places.push_back(place_of(descriptor));
  return places;
}

int connections_to(in_port_t port) {
  return static_cast<int>(std::ranges::count_if(own_descriptors(), [&](int each) {
    return !is_listening(each) && place_of(each).sin_family == AF_INET && place_of(each).sin_port == port;
  }));
}

class Intruder {
 public:
  Intruder() : descriptor_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  explicit Intruder(in_port_t port) : Intruder() { connect_to(port); }
  void connect_to(in_port_t port) {
    sockaddr_in place = {.sin_family = AF_INET, .sin_port = port, .sin_addr = {}, .sin_zero = {}};
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(descriptor_, reinterpret_cast<sockaddr*>(&place), sizeof(place)) == 0;
  }
  ~Intruder() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Intruder(Intruder&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), connected_(other.connected_) {}

  bool connected() const { return connected_; }
  // Sends all bytes, or as many as the peer takes before the connection ends.
  void send_bytes(const std::string& bytes) const {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t now = send(descriptor_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return;
      sent += static_cast<std::size_t>(now);
    }
  }
  // True if the peer has ended the connection.
  bool is_refused() const {
    pollfd ready = {.fd = descriptor_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, 0) != 1) return false;
    char byte = 0;
    return recv(descriptor_, &byte, 1, MSG_DONTWAIT) <= 0;
  }

 private:
  int descriptor_;
  bool connected_ = false;
};

// Two ranks whose watchdogs may be silent for 20 seconds. attack() runs while both wait for it and gets the
// addresses where they listen. Returns the error that ended the job, or "".
struct Attack {
  std::vector<sockaddr_in> places;
  std::atomic<bool>& ended;
  // Waits until the condition holds or the job ends. Returns whether the condition holds.
  bool wait_until(const std::function<bool()>& holds) const {
    while (!holds()) {
      if (ended) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return true;
  }
};

std::string attacked_job(const std::function<void(const Attack&)>& attack) {
  std::atomic<bool> ended{false};
  std::mutex mutex;
  std::string report;
  std::atomic<bool> over{false};
  try_thread_ranks(2, [&](Communicator& communicator) {
    communicator.job()->set_timeout(std::chrono::hours(1));
    Watchdog watchdog(communicator,
                      {.silence = seconds(20), .host = "here", .end_job = [&](const auto& text) {
                         const std::lock_guard lock(mutex);
                         report += text;
                         ended = true;
                       }});
    communicator.barrier();
    communicator.stream().synchronize();
    if (communicator.rank() == 0) {
      attack({.places = meeting_places(), .ended = ended});
      over = true;
    }
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  });
  return report;
}

TEST(WatchdogStrangers, JobOfOneNodeListensOnLoopbackOnly) {
  const std::string report = attacked_job([](const Attack& attack) {
    EXPECT_EQ(attack.places.size(), 2u);
    for (const sockaddr_in& place : attack.places) EXPECT_EQ(place.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  });
  EXPECT_EQ(report, "");
}

TEST(WatchdogStrangers, MegabytesOfZerosDoNotEndTheJob) {
  const std::string report = attacked_job([](const Attack& attack) {
    for (const sockaddr_in& place : attack.places) {
      const Intruder stranger(place.sin_port);
      ASSERT_TRUE(stranger.connected());
      stranger.send_bytes(std::string(std::size_t{8} << 20, '\0'));
      EXPECT_TRUE(attack.wait_until([&] { return stranger.is_refused(); }));
    }
  });
  EXPECT_EQ(report, "");
}

TEST(WatchdogStrangers, SilentConnectionsAreLimitedAndClosed) {
  const std::string report = attacked_job([](const Attack& attack) {
    ASSERT_FALSE(attack.places.empty());
    const in_port_t port = attack.places[0].sin_port;
    std::vector<Intruder> silent;
    for (int i = 0; i < 300; ++i) silent.emplace_back(port);
    const auto refused = [&] { return std::ranges::count_if(silent, &Intruder::is_refused); };
    EXPECT_TRUE(attack.wait_until([&] { return refused() >= 300 - 64; })) << refused();
    EXPECT_LE(connections_to(port), 64 + 1) << "including the connection of the other rank";
    EXPECT_TRUE(attack.wait_until([&] { return refused() == 300; })) << refused();
  });
  EXPECT_EQ(report, "");
}

TEST(WatchdogStrangers, SilentConnectionsLeaveDescriptorsForFiles) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const std::string report = attacked_job([&](const Attack& attack) {
    ASSERT_FALSE(attack.places.empty());
    std::vector<Intruder> silent(40);
    const rlim_t open_now = static_cast<rlim_t>(own_descriptors().back()) + 1;
    rlimit few = before;
    few.rlim_cur = open_now + 40;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (Intruder& stranger : silent) stranger.connect_to(attack.places[0].sin_port);
    const auto refused = [&] { return std::ranges::count_if(silent, &Intruder::is_refused); };
    EXPECT_TRUE(attack.wait_until([&] { return refused() >= 20; })) << refused();
    std::vector<int> files;
    for (int i = 0; i < 20; ++i) files.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(std::ranges::count(files, -1), 0);
    for (const int file : files) close(file);
  });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(report, "");
}

}  // namespace
}  // namespace lockstep
