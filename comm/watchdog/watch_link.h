// SPDX-License-Identifier: Apache-2.0
//
// WatchLink: one TCP connection between the watchdogs of two ranks, and the messages on it. It works while
// MPI is stuck and never blocks: it keeps data that cannot be sent yet. MeetingPoint: where a rank listens
// for such connections, and what others need to find it. A connection is a Stranger until it has sent the
// job's secret; strangers can neither block the thread that listens, nor use up memory or more than a few
// file descriptors.
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
  hello,     // the first message of a connection: the secret, then the rank
  welcome,   // its answer: the secret
  status,    // a RankStatus
  goodbye,   // this rank ends as intended, or has reported its error
  ask,       // asks for the stacks of the rank's threads
  witness,   // asks about a process of the rank's machine: its number
  evidence,  // the answer to ask or witness: text
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
  // True if all messages have been passed to the system.
  bool idle() const { return out_.empty(); }
  // Sends at most the first MiB of the text.
  void say(WatchWord word, std::string_view text = {});
  // Returns the messages that arrived since the last call; reads at most `most_bytes` from the wire. An
  // invalid message ends the link.
  std::vector<WatchMessage> listen(std::size_t most_bytes = kMostInOneCall);
  // Bytes read of an incomplete message.
  std::size_t unread_bytes() const { return in_.size(); }
  // True if the other side has closed the connection or cannot be reached any more.
  bool ended() const { return ended_; }

 private:
  static constexpr std::size_t kMostInOneCall = std::size_t{256} << 10;

  void push();
  void receive(std::size_t most_bytes);

  int descriptor_ = -1;
  bool ended_ = false;
  std::string in_, out_;
};

// A connection to a meeting point that has not sent the secret: it may send one message, the hello, of at
// most 64 bytes, within two seconds.
class Stranger {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMostBytes = 64;
  static constexpr std::chrono::seconds kPatience{2};

  Stranger(int descriptor, Clock::time_point now) : link_(descriptor), until_(now + kPatience) {}

  int descriptor() const { return link_.descriptor(); }
  enum class Is { unknown, known, refused };
  // Reads what has arrived. unknown: the rest may follow; refused: close the connection.
  Is hear(const std::string& secret, Clock::time_point now);
  // The rank of a known connection.
  int rank() const { return rank_; }
  WatchLink take_link() { return std::move(link_); }

 private:
  WatchLink link_;
  Clock::time_point until_;
  int rank_ = -1;
};

class MeetingPoint {
 public:
  static constexpr std::size_t kMostStrangers = 64;  // at the same time; one more replaces the oldest
  static constexpr int kFreeDescriptors = 32;        // that strangers leave free

  struct Guest {
    int rank;
    WatchLink link;
  };

  // Listens at these addresses of this machine, each at a free port. Throws IoError if it can listen at none
  // of them.
  explicit MeetingPoint(std::span<const std::string> addresses);
  ~MeetingPoint();
  MeetingPoint(const MeetingPoint&) = delete;
  MeetingPoint& operator=(const MeetingPoint&) = delete;

  // Call admit() at an event on one of these.
  std::vector<int> descriptors() const;
  // Accepts connections. Returns those that have sent the secret since the last call, and welcomes them.
  std::vector<Guest> admit(Stranger::Clock::time_point now = Stranger::Clock::now());
  const std::string& secret() const { return secret_; }
  // The secret, host and addresses, for connect_to(), as a line of text.
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
  std::vector<Stranger> strangers_;  // oldest first
  bool out_of_descriptors_ = false;  // in the last admit()
  std::string secret_;
};

// Connects to a meeting point, given its way(), and waits for its welcome; empty if no address can be
// reached. Takes up to four seconds for an address that does not answer. Calls meanwhile() several times, and
// stops when it returns false.
std::optional<WatchLink> connect_to(const std::string& way, int rank, const std::function<bool()>& meanwhile);
// The rank that sent the first message of a connection; empty if it does not contain the secret.
std::optional<int> rank_of_hello(const WatchMessage& message, const std::string& secret);

}  // namespace lockstep
