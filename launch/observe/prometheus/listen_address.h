// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/text/text.h"

namespace lockstep {

// An address at which a server listens. Port 0: the system chooses a free one.
struct ListenAddress {
  std::string host;
  std::uint16_t port = 0;
};

// Parses "9464" (at loopback), "0.0.0.0:9464", "[::1]:9464" or "localhost:9464". Empty for other text.
inline std::optional<ListenAddress> parse_listen_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const bool only_port = colon == std::string_view::npos;
  std::string_view host = only_port ? "127.0.0.1" : text.substr(0, colon);
  const auto port = number_from<std::uint16_t>(only_port ? text : text.substr(colon + 1));
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool needs_brackets = host.find(':') != std::string_view::npos;
  if (!port || host.empty() || bracketed != needs_brackets) return std::nullopt;
  return ListenAddress{std::string(host), *port};
}

}  // namespace lockstep
