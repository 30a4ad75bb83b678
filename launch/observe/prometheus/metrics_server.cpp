// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/prometheus/metrics_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/host_name.h"
#include "launch/observe/monitor/background_thread.h"
#include "launch/observe/prometheus/exposition.h"
#include "launch/observe/prometheus/listen_address.h"

namespace lockstep {
namespace {

// For a request, a response, and the client's end of the connection, each.
constexpr std::chrono::seconds kClientPatience{2};
constexpr std::size_t kMostDrainedBytes = 65536;

class ClientDeadline {
 public:
  int milliseconds_left() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until_ - Clock::now());
    return static_cast<int>(std::max<std::int64_t>(0, left.count()));
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point until_ = Clock::now() + kClientPatience;
};

[[noreturn]] void refuse_address(const std::string& address, const std::string& reason) {
  throw ConfigError(fmt::format(
      "run.prometheus_address = \"{}\": {} cannot listen there: {}; set a free port and an address "
      "of this machine, or port 0 for any free port",
      address, host_name(), reason));
}

std::string url_of(int descriptor, const std::string& host) {
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  std::array<char, NI_MAXSERV> port = {};
  getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length);
  getnameinfo(reinterpret_cast<sockaddr*>(&own), length, nullptr, 0, port.data(), port.size(),
              NI_NUMERICSERV);
  if (host == "0.0.0.0" || host == "::") return fmt::format("http://{}:{}/metrics", host_name(), port.data());
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}/metrics", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port.data());
}

// A listening socket; -1 with errno set.
int listening_socket(const addrinfo& place) {
  const int descriptor =
      socket(place.ai_family, place.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, place.ai_protocol);
  if (descriptor < 0) return -1;
  // A job that restarts gets its port although connections of its last start have not expired.
  const int yes = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  constexpr int kMostWaitingClients = 16;
  if (bind(descriptor, place.ai_addr, place.ai_addrlen) == 0 && listen(descriptor, kMostWaitingClients) == 0)
    return descriptor;
  const int error = errno;
  close(descriptor);
  errno = error;
  return -1;
}

int listen_at(const std::string& address, const ListenAddress& wanted) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(wanted.host.c_str(), std::to_string(wanted.port).c_str(), &hints, &found);
  if (failed != 0) refuse_address(address, gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  const int descriptor = listening_socket(*found);
  if (descriptor < 0) refuse_address(address, std::strerror(errno));
  return descriptor;
}

std::string response_of(std::string_view status, std::string_view headers, std::string_view type,
                        std::string_view body) {
  return fmt::format("HTTP/1.1 {}\r\n{}Content-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                     status, headers, type, body.size(), body);
}

// True if the head of an HTTP request is complete.
bool is_whole_request(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos || request.find("\n\n") != std::string_view::npos;
}

}  // namespace

std::string http_response(std::string_view request, const std::string& page) {
  const auto error = [](std::string_view status, std::string_view headers = {}) {
    return response_of(status, headers, "text/plain; charset=utf-8",
                       fmt::format("{}: this address answers GET /metrics\n", status));
  };
  if (!is_whole_request(request)) return error("431 Request Header Fields Too Large");
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || !line.substr(last + 1).starts_with("HTTP/1."))
    return error("400 Bad Request");
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.substr(0, target.find('?')) != "/metrics") return error("404 Not Found");
  if (line.substr(0, first) != "GET") return error("405 Method Not Allowed", "Allow: GET\r\n");
  if (page.empty()) return error("503 Service Unavailable");
  return response_of("200 OK", "", kExpositionType, page);
}

MetricsServer::MetricsServer(const std::string& address) {
  const auto wanted = parse_listen_address(address);
  if (!wanted) refuse_address(address, "it is no address");
  socket_ = listen_at(address, *wanted);
  url_ = url_of(socket_, wanted->host);
  try {
    end_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (end_ < 0) refuse_address(address, std::strerror(errno));
    thread_ = start_background_thread("ls-metrics", [this] {
      try {
        run();
      } catch (const std::exception& error) {
        log::warning("{} is not served any more: {}; training continues", url_, error.what());
      }
    });
  } catch (...) {
    close(socket_);
    if (end_ >= 0) close(end_);
    throw;
  }
}

MetricsServer::~MetricsServer() {
  const std::uint64_t one = 1;
  if (write(end_, &one, sizeof(one)) < 0) log::warning("cannot end the server of {}", url_);
  thread_.join();
  close(socket_);
  close(end_);
}

void MetricsServer::show(std::string page) {
  const std::lock_guard lock(mutex_);
  page_ = std::move(page);
}

// Waits for events of the connection. False after this time, or at the end of this object.
bool MetricsServer::wait_for(int connection, short events, int milliseconds) const {
  std::array<pollfd, 2> files = {{{.fd = connection, .events = events}, {.fd = end_, .events = POLLIN}}};
  int ready = 0;
  do ready = poll(files.data(), files.size(), milliseconds);
  while (ready < 0 && errno == EINTR);
  return ready > 0 && files[1].revents == 0;
}

void MetricsServer::run() {
  constexpr int kForever = -1, kPauseMilliseconds = 1000;
  for (;;) {
    if (!wait_for(socket_, POLLIN, kForever)) return;
    const int connection = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection >= 0) {
      serve(connection);
      close(connection);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the queue, so poll() would return at once: waits for the end only.
      wait_for(-1, 0, kPauseMilliseconds);
    }
  }
}

void MetricsServer::serve(int connection) {
  std::string request;
  std::array<char, 2048> bytes = {};
  const ClientDeadline heard;
  while (!is_whole_request(request) && request.size() < kMostRequestBytes) {
    if (!wait_for(connection, POLLIN, heard.milliseconds_left())) return;
    const ssize_t got = recv(connection, bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return;
    request.append(bytes.data(), static_cast<std::size_t>(got));
  }
  std::string response;
  {
    const std::lock_guard lock(mutex_);
    response = http_response(request, page_);
  }
  const ClientDeadline answered;
  for (std::string_view left = response; !left.empty();) {
    if (!wait_for(connection, POLLOUT, answered.milliseconds_left())) return;
    const ssize_t sent = send(connection, left.data(), left.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (sent < 0) return;
    left.remove_prefix(static_cast<std::size_t>(sent));
  }
  // Closing a connection with unread bytes would reset it before the client has read the response.
  shutdown(connection, SHUT_WR);
  const ClientDeadline closed;
  for (std::size_t drained = 0; drained < kMostDrainedBytes;) {
    if (!wait_for(connection, POLLIN, closed.milliseconds_left())) return;
    const ssize_t got = recv(connection, bytes.data(), bytes.size(), 0);
    if (got <= 0) return;
    drained += static_cast<std::size_t>(got);
  }
}

}  // namespace lockstep
