// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace lockstep {

// How the metrics of a training reach Prometheus.
struct PrometheusOptions {
  static constexpr const char* kNone = "none";
  std::string dir = kNone;      // folder of the files; see MetricsOutput
  std::string address = kNone;  // see parse_listen_address()
  bool any() const { return dir != kNone || address != kNone; }
};

}  // namespace lockstep
