// SPDX-License-Identifier: Apache-2.0
//
// Checks that a trace of several ranks is well-formed and that its arrows lead from gradients through buckets
// to the waiting step.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launch/program/program.h"
#include "tests/launch/program/run_json.h"

namespace lockstep {

// True if a span of `name` contains the time `at` (microseconds). Span ends are rounded.
inline bool has_span_around(const std::vector<const nlohmann::json*>& spans, const std::string& name,
                            double at) {
  constexpr double kRounded = 0.01;
  for (const nlohmann::json* span : spans) {
    const double begin = (*span)["ts"];
    if ((*span)["name"] == name && begin <= at + kRounded &&
        at <= begin + span->at("dur").get<double>() + kRounded)
      return true;
  }
  return false;
}

inline void expect_arrow(const std::vector<nlohmann::json>& arrow,
                         const std::map<std::pair<int, int>, std::vector<const nlohmann::json*>>& spans) {
  ASSERT_EQ(arrow.size(), 3u) << arrow.front();
  const char* const phases[] = {"s", "t", "f"};
  double before = arrow[0]["ts"];
  for (std::size_t i = 0; i < 3; ++i) {
    const double at = arrow[i]["ts"];
    EXPECT_EQ(arrow[i]["ph"], phases[i]);
    EXPECT_LE(before, at) << arrow[i];
    before = at;
    EXPECT_EQ(arrow[i]["args"], arrow[0]["args"]);
    const auto& there = spans.at({arrow[i]["pid"], arrow[i]["tid"]});
    const std::string bucket = "bucket " + std::to_string(arrow[i]["args"]["bucket"].get<int>());
    const bool bound = i == 0
                           ? has_span_around(there, "backward", at) || has_span_around(there, "exchange", at)
                       : i == 1 ? has_span_around(there, bucket, at)
                                : has_span_around(there, "exchange", at);
    EXPECT_TRUE(bound) << arrow[i];
  }
}

// Returns the parsed trace.
inline nlohmann::json expect_trace_of_ranks(const std::filesystem::path& path, int ranks) {
  nlohmann::json trace = nlohmann::json::parse(text_of(path));
  std::map<std::pair<int, int>, std::vector<const nlohmann::json*>> spans;  // by rank and track
  std::map<std::uint64_t, std::vector<nlohmann::json>> arrows;
  std::map<int, int> buckets, arrows_of;  // by rank
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    const std::string phase = event["ph"];
    if (phase == "X") spans[{event["pid"], event["tid"]}].push_back(&event);
    if (phase == "X" && event["name"].get<std::string>().starts_with("bucket ")) ++buckets[event["pid"]];
    if (phase == "s") ++arrows_of[event["pid"]];
    if (phase == "s" || phase == "t" || phase == "f")
      arrows[event["id"].get<std::uint64_t>()].push_back(event);
  }
  EXPECT_EQ(static_cast<int>(arrows_of.size()), ranks);
  EXPECT_EQ(arrows_of, buckets);
  for (const auto& [id, arrow] : arrows) expect_arrow(arrow, spans);
  EXPECT_EQ(trace.at("otherData").at("clocks").size(), static_cast<std::size_t>(ranks));
  return trace;
}

// Checks that an epoch's communication equals the step account, part by part. `metrics` is one line of
// metrics.jsonl.
inline void expect_ledger_of_the_account(const nlohmann::json& metrics, int ranks) {
  constexpr double kRounding = 1e-6;  // of sums of moments in nanoseconds
  const nlohmann::json& told = metrics.at("communication");
  double step_seconds = 0;
  for (const auto& [phase, seconds] : metrics.at("account").items()) step_seconds += seconds.get<double>();
  EXPECT_NEAR(step_seconds, metrics["train_seconds"].get<double>(), kRounding);
  const double exposed = told["exposed_seconds"];
  EXPECT_NEAR(exposed, metrics["account"]["exposed_communication"].get<double>(), kRounding);
  double parts = 0;
  for (const auto& [part, seconds] : told["exposed"].items()) parts += seconds.get<double>();
  EXPECT_NEAR(parts, exposed, kRounding);
  double hidden = 0;
  for (const nlohmann::json& bucket : told["by_bucket"]) {
    hidden += bucket["hidden_seconds"].get<double>();
    EXPECT_GT(bucket["wire_seconds"].get<double>() + bucket["late_seconds"].get<double>(), 0) << bucket;
    EXPECT_GE(bucket["hidden_seconds"], 0) << bucket;
    EXPECT_GE(bucket["exposed_seconds"], 0) << bucket;
  }
  EXPECT_NEAR(told["hidden_seconds"].get<double>(), hidden, kRounding);
  EXPECT_EQ(told["by_rank"].size(), static_cast<std::size_t>(ranks));
}

inline void expect_ledger_of_every_epoch(const std::filesystem::path& metrics, int ranks) {
  const std::vector<nlohmann::json> epochs = json_lines_of(metrics);
  EXPECT_FALSE(epochs.empty());
  for (const nlohmann::json& epoch : epochs) expect_ledger_of_the_account(epoch, ranks);
}

}  // namespace lockstep
