// SPDX-License-Identifier: Apache-2.0
//
// The HTTP server of metrics, and clients that are slow, silent, or not interested in metrics.
#include "launch/observe/prometheus/metrics_server.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/error.h"
#include "core/system/host_name.h"
#include "core/text/text.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

const std::string kPage = "lockstep_busy_ratio{rank=\"0\"} 0.5\n";

std::string status_of(std::string_view response) {
  const auto words = split_text(response, ' ');
  return words.size() > 1 && response.starts_with("HTTP/1.1 ") ? std::string(words[1]) : "none";
}

std::uint16_t port_of(const MetricsServer& server) {
  const std::string& url = server.url();
  const std::size_t begin = url.rfind(':') + 1;
  return number_from<std::uint16_t>(url.substr(begin, url.find('/', begin) - begin)).value_or(0);
}

class Client {
 public:
  explicit Client(const MetricsServer& server) : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_of(server));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(descriptor_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // False if the server has closed the connection.
  bool say(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t sent = send(descriptor_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // All bytes that the server sends until it closes the connection, or the first `most` of them.
  std::string hear(std::size_t most = std::numeric_limits<std::size_t>::max()) const {
    std::string all;
    std::array<char, 4096> bytes;  // NOLINT: written before it is read
    for (ssize_t got = 1; got > 0 && all.size() < most;) {
      got = recv(descriptor_, bytes.data(), std::min(bytes.size(), most - all.size()), 0);
      if (got > 0) all.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return all;
  }

 private:
  int descriptor_;
};

std::string get(const MetricsServer& server, const std::string& request = "GET /metrics HTTP/1.1\r\n\r\n") {
  const Client client(server);
  client.say(request);
  return client.hear();
}

TEST(HttpResponse, AnswersOnlyGetOfMetrics) {
  const auto status = [](std::string_view request) { return status_of(http_response(request, kPage)); };
  EXPECT_EQ(status("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: a/b\r\n\r\n"), "200");
  EXPECT_EQ(status("GET /metrics HTTP/1.0\n\n"), "200");
  EXPECT_EQ(status("GET /metrics?a=b HTTP/1.1\r\n\r\n"), "200");
  EXPECT_EQ(status("GET / HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(status("GET /metrics/ HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(status("GET /../etc/passwd HTTP/1.1\r\n\r\n"), "404");
  EXPECT_EQ(status("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), "405");
  EXPECT_EQ(status("HEAD /metrics HTTP/1.1\r\n\r\n"), "405");
  EXPECT_EQ(status("GET /metrics\r\n\r\n"), "400");
  EXPECT_EQ(status("\r\n\r\n"), "400");
  EXPECT_EQ(status("\x16\x03\x01 TLS \r\n\r\n"), "400");
  EXPECT_EQ(status(std::string(kMostRequestBytes, 'a')), "431");
  EXPECT_EQ(status_of(http_response("GET /metrics HTTP/1.1\r\n\r\n", "")), "503");
  expect_parts(http_response("PUT /metrics HTTP/1.1\r\n\r\n", kPage), {"\r\nAllow: GET\r\n"});
}

TEST(HttpResponse, HasTypeAndLength) {
  const std::string response = http_response("GET /metrics HTTP/1.1\r\n\r\n", kPage);
  expect_parts(response,
               {"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n",
                fmt::format("\r\nContent-Length: {}\r\n", kPage.size()), "\r\nConnection: close\r\n"});
  EXPECT_TRUE(response.ends_with("\r\n\r\n" + kPage));
}

TEST(MetricsServer, ServesTheNewestPage) {
  MetricsServer server("0");
  EXPECT_TRUE(server.url().starts_with("http://127.0.0.1:")) << server.url();
  EXPECT_EQ(status_of(get(server)), "503");
  server.show("old 1\n");
  server.show(kPage);
  EXPECT_TRUE(get(server).ends_with("\r\n\r\n" + kPage));
  EXPECT_EQ(status_of(get(server, "GET /other HTTP/1.1\r\n\r\n")), "404");
}

TEST(MetricsServer, RequestInPiecesIsAnswered) {
  MetricsServer server("0");
  server.show(kPage);
  const Client client(server);
  for (const char c : std::string_view("GET /metrics HTTP/1.1\r\n\r\n")) ASSERT_TRUE(client.say({&c, 1}));
  EXPECT_EQ(status_of(client.hear()), "200");
}

TEST(MetricsServer, ClientsThatSayNothingOrTooMuchDoNotStopIt) {
  MetricsServer server("0");
  server.show(kPage);
  const Client silent(server), half(server);
  half.say("GET /metr");
  EXPECT_EQ(status_of(get(server)), "200") << "after the others' time is over";
  EXPECT_EQ(silent.hear(), "");
  EXPECT_EQ(half.hear(), "");
  {
    const Client endless(server);
    while (endless.say(std::string(4096, 'x'))) continue;
  }
  EXPECT_EQ(status_of(get(server, "GET /metrics HTTP/1.1\r\n" + std::string(kMostRequestBytes, 'x'))), "431");
  EXPECT_EQ(status_of(get(server)), "200");
}

TEST(MetricsServer, ClientThatDoesNotReadDoesNotStopIt) {
  MetricsServer server("0");
  std::string page(std::size_t{16} << 20, 'x');  // more than the system buffers
  for (std::size_t i = 0; i < page.size(); ++i) page[i] = static_cast<char>('a' + i / 997 % 26);
  server.show(page);
  const Client slow(server);
  slow.say("GET /metrics HTTP/1.1\r\n\r\n");
  const std::string begin = slow.hear(1);
  {
    const Client gone(server);
    gone.say("GET /metrics HTTP/1.1\r\n\r\n");
  }
  server.show(kPage);
  EXPECT_TRUE(get(server).ends_with("\r\n\r\n" + kPage)) << "after the others' time is over";
  const std::string rest = slow.hear();
  EXPECT_GT(rest.size(), 0u);
  EXPECT_TRUE(http_response("GET /metrics HTTP/1.1\r\n\r\n", page).starts_with(begin + rest));
}

TEST(MetricsServer, EndsWhileClientsAreConnected) {
  auto server = std::make_unique<MetricsServer>("0");
  server->show(std::string(std::size_t{16} << 20, 'x'));
  const Client silent(*server), slow(*server);
  slow.say("GET /metrics HTTP/1.1\r\n\r\n");
  server.reset();
  EXPECT_EQ(silent.hear(), "");
}

TEST(MetricsServer, PortInUseAndWrongAddressesAreConfigErrors) {
  const MetricsServer server("0");
  const std::string used = fmt::format("127.0.0.1:{}", port_of(server));
  for (const auto& [address, reason] : {std::pair<std::string, std::string>{used, "in use"},
                                        {"192.0.2.1:0", "assign requested address"},
                                        {"what", "no address"}}) {
    const std::string message = message_of<ConfigError>([&] { MetricsServer{address}; });
    expect_parts(message, {"run.prometheus_address", address, reason, "port"});
  }
}

TEST(MetricsServer, ListensAtTheGivenAddressOnly) {
  MetricsServer all("0.0.0.0:0");
  EXPECT_TRUE(all.url().starts_with("http://" + host_name() + ":"))
      << all.url() << ": no browser opens 0.0.0.0";
  all.show(kPage);
  EXPECT_EQ(status_of(get(all)), "200");
}

}  // namespace
}  // namespace lockstep
