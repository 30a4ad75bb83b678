// SPDX-License-Identifier: Apache-2.0
//
// MetricsServer: serves one page over HTTP: GET /metrics. A thread handles one connection at a time, each
// with one request of limited size and time, so that a client that is slow, silent or not a Prometheus delays
// other clients by seconds and the training not at all.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace lockstep {

class MetricsServer {
 public:
  // Listens at this address (see parse_listen_address()) and starts the thread. Throws ConfigError if it
  // cannot, such as for a port in use.
  explicit MetricsServer(const std::string& address);
  // Waits for the thread, which ends at once.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  // Replaces the page. Any thread.
  void show(std::string page);
  // "http://127.0.0.1:9464/metrics", with the port that the system chose.
  const std::string& url() const { return url_; }

 private:
  void run();
  void serve(int connection);
  bool wait_for(int connection, short events, int milliseconds) const;

  std::string url_;
  int socket_ = -1;
  int end_ = -1;  // an eventfd that ends the thread
  std::mutex mutex_;
  std::string page_;  // guarded by mutex_
  std::thread thread_;
};

inline constexpr std::size_t kMostRequestBytes = 8192;

// The response to a request whose head is complete, or that has kMostRequestBytes or more. page: empty if
// there is none yet.
std::string http_response(std::string_view request, const std::string& page);

}  // namespace lockstep
