// SPDX-License-Identifier: Apache-2.0
//
// WatchLink: one TCP connection between the watchdogs of two ranks, and the messages on it. It works while
// MPI is stuck, and never blocks: what finds no room on the wire is kept, and what is there is taken.
// MeetingPoint: where a rank listens for such connections, and what the others need to find it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
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
  // What has been said to this side since. Messages that make no sense end the link.
  std::vector<WatchMessage> listen();
  // The other side has gone, or cannot be reached any more.
  bool ended() const { return ended_; }

 private:
  void push();

  int descriptor_ = -1;
  bool ended_ = false;
  std::string in_, out_;
};

class MeetingPoint {
 public:
  // Throws IoError where this machine allows no such thing.
  MeetingPoint();
  ~MeetingPoint();
  MeetingPoint(const MeetingPoint&) = delete;
  MeetingPoint& operator=(const MeetingPoint&) = delete;

  int descriptor() const { return descriptor_; }
  // Somebody has come; nothing: nobody has.
  std::optional<WatchLink> accept();
  const std::string& secret() const { return secret_; }
  // The way here, for connect_to(), as a line of text.
  std::string way() const;

 private:
  int descriptor_ = -1;
  int port_ = 0;
  std::string secret_;
};

// A connection to the meeting point of that way, which has welcomed this rank; nothing where no address of it
// can be reached. Takes two seconds for an address that does not answer; meanwhile() is called several times,
// and ends it when it returns false.
std::optional<WatchLink> connect_to(const std::string& way, int rank, const std::function<bool()>& meanwhile);
// Whether the first message of a connection says that secret; then the rank that sent it.
std::optional<int> rank_of_hello(const WatchMessage& message, const std::string& secret);

}  // namespace lockstep
