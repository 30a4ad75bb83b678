// SPDX-License-Identifier: Apache-2.0
//
// WatchLink: one TCP connection between the watchdogs of two ranks, and the messages on it. It works while
// MPI is stuck, and never blocks: what finds no room on the wire is kept, and what is there is taken.
// MeetingPoint: where a rank listens for such connections, and what the others need to find it. Anyone who
// reaches its port is a Stranger until he has shown the job's secret; strangers can neither hold the thread
// that listens, nor its memory, nor more than a few file descriptors.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

enum class WatchWord : std::uint32_t {
  hello,     // the secret, then a rank's number: the first on a connection
  welcome,   // its answer: the secret
  status,    // a RankStatus
  goodbye,   // this rank ends, and knows it: its end means nothing
  ask,       // tell where your threads stand
  witness,   // tell how that process of your machine does: its number
  evidence,  // the answer to either: text
  end,       // the job ends
};

struct WatchMessage {
  WatchWord word;
  std::string text;
};

class WatchLink {
 public:
  explicit WatchLink(int descriptor) : descriptor_(descriptor) {}
  ~WatchLink();
  WatchLink(WatchLink&& other) noexcept;
  WatchLink& operator=(WatchLink&& other) noexcept;

  int descriptor() const { return descriptor_; }
  // Whether all that was said has left this process.
  bool idle() const { return out_.empty(); }
  void say(WatchWord word, std::string_view text = {});
  // Messages that arrived since the last call, of which one call reads at most `most_bytes` from the wire.
  // Messages that make no sense end the link.
  std::vector<WatchMessage> listen(std::size_t most_bytes = kMostInOneCall);
  // Bytes that were read and are no whole message yet.
  std::size_t unread_bytes() const { return in_.size(); }
  // The other side has gone, or cannot be reached any more.
  bool ended() const { return ended_; }

 private:
  static constexpr std::size_t kMostInOneCall = std::size_t{256} << 10;

  void push();
  void receive(std::size_t most_bytes);

  int descriptor_ = -1;
  bool ended_ = false;
  std::string in_, out_;
};

// A connection to a meeting point that has not shown the secret: it may send one message, the hello, of at
// most 64 bytes, within two seconds.
class Stranger {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostBytes = 64;
  static constexpr std::chrono::seconds kPatience{2};

  Stranger(int descriptor, Clock::time_point now) : link_(descriptor), until_(now + kPatience) {}

  int descriptor() const { return link_.descriptor(); }
  enum class Is { unknown, known, refused };
  // Reads what it has sent. Unknown: it may send the rest later; refused: close it.
  Is hear(const std::string& secret, Clock::time_point now);
  // Of a known one, which is a rank of this job.
  int rank() const { return rank_; }
  WatchLink take_link() { return std::move(link_); }

 private:
  WatchLink link_;
  Clock::time_point until_;
  int rank_ = -1;
};

class MeetingPoint {
 public:
  static constexpr std::size_t kMostStrangers = 64;  // at the same time; a further one replaces the first
  static constexpr int kFreeDescriptors = 32;        // that strangers leave to the process

  struct Guest {
    int rank;
    WatchLink link;
  };

  // Listens at these addresses of this machine, each at a free port. Throws IoError where it can listen at
  // none of them.
  explicit MeetingPoint(std::span<const std::string> addresses);
  ~MeetingPoint();
  MeetingPoint(const MeetingPoint&) = delete;
  MeetingPoint& operator=(const MeetingPoint&) = delete;

  // A reason to call admit() is an event of one of these.
  std::vector<int> descriptors() const;
  // Connections that have shown the secret since the last call, and were welcomed.
  std::vector<Guest> admit(Stranger::Clock::time_point now = Stranger::Clock::now());
  const std::string& secret() const { return secret_; }
  // The way here, for connect_to(), as a line of text.
  std::string way() const;

 private:
  struct Socket {
    int descriptor;
    std::string address;  // with its port
  };

  void listen_at(const std::string& address);
  void hear(Stranger stranger, Stranger::Clock::time_point now, std::vector<Guest>& guests);
  void accept_all(const Socket& socket, Stranger::Clock::time_point now, std::vector<Guest>& guests);

  std::vector<Socket> sockets_;
  std::vector<Stranger> strangers_;  // in the order in which they came
  bool out_of_descriptors_ = false;  // the last accept() found none
  std::string secret_;
};

// A connection to the meeting point of that way, which has welcomed this rank; nothing where no address of it
// can be reached. Takes up to four seconds for an address that does not answer; meanwhile() is called several
// times, and ends it when it returns false.
std::optional<WatchLink> connect_to(const std::string& way, int rank, const std::function<bool()>& meanwhile);
// Whether the first message of a connection says that secret; then the rank that sent it.
std::optional<int> rank_of_hello(const WatchMessage& message, const std::string& secret);

}  // namespace lockstep
