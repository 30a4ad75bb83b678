// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "benchmarks/collective_ways.h"
#include "comm/agreement.h"
#include "core/error.h"

namespace lockstep {
namespace {

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) { require(descriptor >= 0, "socket"); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

  static void require(bool ok, const char* call) {
    if (!ok) throw Error(exit_code::failed, fmt::format("{} failed: {}", call, std::strerror(errno)));
  }

 private:
  int descriptor_;
};

// The address on which a rank listens.
struct Address {
  std::array<char, 256> host{};
  std::uint16_t port = 0;  // in network byte order
};

Address listen_anywhere(const Socket& socket, const std::string& host, int ranks) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  Socket::require(bind(socket.descriptor(), reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0, "bind");
  Socket::require(listen(socket.descriptor(), ranks) == 0, "listen");
  socklen_t length = sizeof(any);
  Socket::require(getsockname(socket.descriptor(), reinterpret_cast<sockaddr*>(&any), &length) == 0,
                  "getsockname");
  Address address{.port = any.sin_port};
  host.copy(address.host.data(), address.host.size() - 1);
  return address;
}

Socket connect_to(const Address& address) {
  addrinfo* found = nullptr;
  const addrinfo hints{.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  if (const int code = getaddrinfo(address.host.data(), nullptr, &hints, &found); code != 0) {
    throw Error(exit_code::failed,
                fmt::format("no address of {}: {}", address.host.data(), gai_strerror(code)));
  }
  sockaddr_in to{};
  std::memcpy(&to, found->ai_addr, sizeof(to));
  freeaddrinfo(found);
  to.sin_port = address.port;
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  Socket::require(connect(socket.descriptor(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0, "connect");
  return socket;
}

// Transfers the bytes of an all_reduce from send to receive memory over plain TCP connections, one for each
// pair of ranks, in both directions at once; adds nothing.
class TcpWay final : public Way {
 public:
  TcpWay(std::vector<Socket> peers, std::shared_ptr<WayMemory> memory)
      : Way("tcp", std::move(memory)),
        peers_(std::move(peers)),
        streams_(peers_.size()),
        polls_(peers_.size()) {
    for (const Socket& peer : peers_) {
      const int yes = 1;
      Socket::require(setsockopt(peer.descriptor(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) == 0,
                      "setsockopt");
    }
  }

  bool leaves_result() const override { return false; }

  std::string lacks(const CollectiveCase& c) const override {
    return c.kind == CollectiveKind::all_reduce ? "" : "tcp supports all_reduce only";
  }

  void run(const CollectiveCase& c, std::byte* send, std::byte* recv) override {
    // Each rank receives its part of every rank's input and sends its sum to all: 2 / ranks of the bytes per
    // peer and direction.
    const std::size_t each = std::max<std::size_t>(2 * c.bytes() / static_cast<std::size_t>(c.ranks), 1);
    for (std::size_t i = 0; i < peers_.size(); ++i) streams_[i] = {.to_send = each, .to_receive = each};
    while (!std::ranges::all_of(streams_, &Transfer::done)) {
      bool any = false;
      for (std::size_t i = 0; i < peers_.size(); ++i) any |= move(i, send, recv, c.bytes());
      if (!any) wait();
    }
  }

 private:
  static constexpr std::size_t kAtOnce = std::size_t{64} << 10;

  struct Transfer {
    std::size_t to_send = 0;
    std::size_t to_receive = 0;
    bool done() const { return to_send == 0 && to_receive == 0; }
  };

  // Sends and receives one piece each without waiting; returns true if any byte moved. Reuses memory of
  // `bytes` bytes as often as needed.
  bool move(std::size_t peer, const std::byte* send, std::byte* recv, std::size_t bytes) {
    const int descriptor = peers_[peer].descriptor();
    Transfer& transfer = streams_[peer];
    const auto piece = [&](std::size_t left) { return std::min({left, kAtOnce, bytes}); };
    const auto place = [&](std::size_t left) { return left % (bytes - piece(left) + 1); };
    bool any = false;
    if (transfer.to_send > 0) {
      const std::size_t left = transfer.to_send;
      any |= advance(transfer.to_send, ::send(descriptor, send + place(left), piece(left), MSG_DONTWAIT));
    }
    if (transfer.to_receive > 0) {
      const std::size_t left = transfer.to_receive;
      const ssize_t got = ::recv(descriptor, recv + place(left), piece(left), MSG_DONTWAIT);
      if (got == 0) throw Error(exit_code::failed, "a peer closed its plain TCP connection");
      any |= advance(transfer.to_receive, got);
    }
    return any;
  }

  static bool advance(std::size_t& left, ssize_t moved) {
    Socket::require(moved >= 0 || errno == EAGAIN || errno == EWOULDBLOCK, "send or recv");
    if (moved <= 0) return false;
    left -= static_cast<std::size_t>(moved);
    return true;
  }

  void wait() {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      short events = 0;
      if (streams_[i].to_send > 0) events |= POLLOUT;
      if (streams_[i].to_receive > 0) events |= POLLIN;
      polls_[i] = {.fd = events == 0 ? -1 : peers_[i].descriptor(), .events = events, .revents = 0};
    }
    Socket::require(poll(polls_.data(), polls_.size(), -1) >= 0, "poll");
  }

  std::vector<Socket> peers_;
  std::vector<Transfer> streams_;
  std::vector<pollfd> polls_;
};

}  // namespace

std::unique_ptr<Way> tcp_way(World& world, Communicator& host, std::shared_ptr<WayMemory> memory,
                             std::string& why_not) {
  if (world.size() < 2) {
    why_not = "a single rank has no peers";
    return nullptr;
  }
  std::vector<Socket> peers;
  const Socket listening(::socket(AF_INET, SOCK_STREAM, 0));
  const std::vector<Address> addresses =
      gather_values(host, listen_anywhere(listening, world.host(), world.size()));
  // The lower rank of a pair listens. connect() returns before accept(), because the system completes it.
  for (int rank = 0; rank < world.rank(); ++rank)
    peers.push_back(connect_to(addresses[static_cast<std::size_t>(rank)]));
  for (int rank = world.rank() + 1; rank < world.size(); ++rank)
    peers.emplace_back(accept(listening.descriptor(), nullptr, nullptr));
  return std::make_unique<TcpWay>(std::move(peers), std::move(memory));
}

}  // namespace lockstep
