// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/report.h"

#include <algorithm>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/text/enum_words.h"
#include "core/text/text.h"
#include "launch/program/plan/link_speed.h"

namespace lockstep {
namespace {

constexpr BucketMib::value_type kEndMib[] = {0.25, 1, 4}, kMiddleMib[] = {1, 2, 4, 8, 16, 25, 64};

// The capacities with the shortest predicted step, and that step.
std::pair<BucketMib, StepPrediction> best_buckets(StepModel model, const Cluster& cluster,
                                                  const PlanBuckets& buckets) {
  std::pair<BucketMib, StepPrediction> best;
  for (const double first : kEndMib) {
    for (const double middle : kMiddleMib) {
      for (const double last : kEndMib) {
        model.buckets = buckets({first, middle, last});
        const StepPrediction step = predict_step(model, cluster);
        if (best.second.seconds > 0 && step.seconds >= best.second.seconds) continue;
        best = {{first, middle, last}, step};
      }
    }
  }
  return best;
}

std::string row_text(const StepPrediction& row) {
  return fmt::format("  {:>6}  {:>5}  {:>8.1f}  {:>8.1f} to {:<8.1f}  {:>10.1f}  {:>9.0f}  {:>6.1f}",
                     row.ranks, row.nodes, row.seconds * 1e3, row.low_seconds * 1e3, row.high_seconds * 1e3,
                     row.exposed_seconds * 1e3, row.samples_per_second, row.efficiency * 100);
}

double largest_bytes(const StepModel& model, int ranks) {
  double largest = 0;
  for (const PlannedBucket& bucket : model.buckets)
    largest = std::max(largest, model.summed_bytes(bucket, ranks));
  return largest;
}

// Simulates the all-reduce of the largest bucket between nodes; nullopt for one node, for more than
// kMostNodes, and where NCCL adds.
std::optional<AllReduceRun> largest_sum(const StepModel& model, const Cluster& cluster) {
  constexpr int kMostNodes = 8192;
  if (cluster.nodes == 1 || cluster.nodes > kMostNodes || model.buckets.empty() || cluster.nccl)
    return std::nullopt;
  return simulate_all_reduce(largest_bytes(model, cluster.ranks()), cluster.nodes, cluster.way,
                             cluster.between_nodes);
}

std::vector<NcclSum> nccl_sums(const SimulationReport& report) {
  std::vector<NcclSum> sums;
  if (!report.cluster.nccl || report.model.buckets.empty()) return sums;
  for (const StepPrediction& row : report.rows) {
    if (row.ranks == 1) continue;
    Cluster cluster = report.cluster;
    cluster.ranks_per_node = row.ranks / row.nodes;
    cluster.nodes = row.nodes;
    const double bytes = largest_bytes(report.model, row.ranks);
    sums.push_back({.ranks = row.ranks,
                    .nodes = row.nodes,
                    .bytes = bytes,
                    .all_reduce = nccl_all_reduce(bytes, gpu_nodes(cluster))});
  }
  return sums;
}

nlohmann::ordered_json json_of(const StepPrediction& row) {
  return {{"ranks", row.ranks},
          {"nodes", row.nodes},
          {"step_seconds", row.seconds},
          {"low_seconds", row.low_seconds},
          {"high_seconds", row.high_seconds},
          {"exposed_seconds", row.exposed_seconds},
          {"sum_seconds", row.sum_seconds},
          {"samples_per_second", row.samples_per_second},
          {"efficiency", row.efficiency}};
}

nlohmann::ordered_json json_of(const Tier& tier) {
  return {{"latency_seconds", tier.latency_seconds},
          {"bytes_per_second", tier.bytes_per_second},
          {"seconds_per_byte", tier.seconds_per_byte}};
}

nlohmann::ordered_json json_of(const NcclLinks& links) {
  return {{"ring_bytes_per_second", links.ring_bytes_per_second},
          {"nvls_bytes_per_second", links.nvls_bytes_per_second},
          {"rails", links.rails},
          {"rail_bytes_per_second", links.rail_bytes_per_second},
          {"latency_seconds", links.latency_seconds}};
}

nlohmann::ordered_json json_of(const NcclSum& sum) {
  return {{"ranks", sum.ranks},
          {"nodes", sum.nodes},
          {"bytes", sum.bytes},
          {"algorithm", word_of(sum.all_reduce.algorithm)},
          {"seconds", sum.all_reduce.seconds}};
}

nlohmann::ordered_json json_of(const TierFit& fit) {
  return {{"latency_seconds", fit.latency_seconds},
          {"slowness", fit.slowness},
          {"seconds_per_byte", fit.seconds_per_byte},
          {"residual", fit.residual}};
}

// With one node, the link to a second one is not known.
bool knows_no_knee(const SimulationReport& report) {
  const StepPrediction& asked = report.rows.back();
  return asked.nodes == 1 && report.knee == asked.ranks;
}

std::vector<PlanChange> find_changes(const StepModel& model, const Cluster& cluster,
                                     const PlanBuckets& buckets, bool gradients_are_wide) {
  const double now = predict_step(model, cluster).seconds;
  std::vector<PlanChange> changes;
  const auto offer = [&](std::string change, const StepPrediction& step) {
    constexpr double kNotable = 0.995;
    if (step.seconds < kNotable * now) changes.push_back({std::move(change), step});
  };
  const auto offer_buckets = [&](const StepModel& changed, const std::string& also) {
    const auto& [mib, step] = best_buckets(changed, cluster, buckets);
    offer(fmt::format("comm.bucket_mib = [{}]{}", fmt::join(mib, ", "), also), step);
  };
  offer_buckets(model, "");
  if (gradients_are_wide) {
    StepModel narrow = model;
    narrow.bytes_factor /= 2;
    const bool also_bf16 = !sums_in_f32(model.sum_type, DType::bf16, cluster.ranks());
    const std::string name = also_bf16 ? "gradients of 16 bits" : "gradients of 16 bits (fp16)";
    offer(name, predict_step(narrow, cluster));
    offer_buckets(narrow, ", " + name);
  }
  std::ranges::stable_sort(changes, {}, [](const PlanChange& change) { return change.step.seconds; });
  return changes;
}

}  // namespace

SimulationReport simulate(const StepModel& model, const Cluster& cluster, const PlanBuckets& buckets,
                          bool gradients_are_wide) {
  SimulationReport report{.model = model, .cluster = cluster};
  report.rows = predict_scaling(model, cluster);
  report.knee = find_knee(model, cluster);
  report.largest_sum = largest_sum(model, cluster);
  report.nccl_sums = nccl_sums(report);
  report.changes = find_changes(model, cluster, buckets, gradients_are_wide);
  return report;
}

std::vector<std::string> to_lines(const SimulationReport& report) {
  std::vector<std::string> lines;
  const StepPrediction& asked = report.rows.back();
  lines.push_back(fmt::format("predicted steps, up to {} on {}", counted(asked.ranks, "rank"),
                              counted(asked.nodes, "node")));
  lines.push_back(fmt::format("  {:>6}  {:>5}  {:>8}  {:^20}  {:>10}  {:>9}  {:>6}", "ranks", "nodes",
                              "step ms", "8 in 10 steps", "exposed ms", "samples/s", "eff. %"));
  for (const StepPrediction& row : report.rows) lines.push_back(row_text(row));
  lines.emplace_back("knee");
  if (report.knee == 0)
    lines.push_back(fmt::format(
        "  none up to a million ranks: each doubling gives at least {} times the samples/s", kWorthwhile));
  else if (knows_no_knee(report))
    lines.emplace_back("  none on one node; set --nodes and --link for more nodes");
  else
    lines.push_back(fmt::format("  from {} on, a doubling gives less than {} times the samples/s",
                                counted(report.knee, "rank"), kWorthwhile));
  lines.push_back(fmt::format("changes that shorten the step on {}", counted(asked.ranks, "rank")));
  if (report.changes.empty()) lines.emplace_back("  none of the changes that were tried");
  for (const PlanChange& change : report.changes) {
    lines.push_back(fmt::format("  {}: {:.1f} ms, {:.1f} ms exposed, {:+.1f} % samples/s", change.change,
                                change.step.seconds * 1e3, change.step.exposed_seconds * 1e3,
                                100 * (asked.seconds / change.step.seconds - 1)));
  }
  if (report.largest_sum) {
    lines.push_back(
        fmt::format("sum of the largest bucket between {}\n  {} messages, at most {} per node; {} if "
                    "simulated message by message",
                    counted(asked.nodes, "node"), report.largest_sum->messages, report.largest_sum->most_sent,
                    time_text(report.largest_sum->seconds)));
  }
  if (!report.nccl_sums.empty())
    lines.emplace_back("sum of the largest bucket, as NCCL's own model predicts it");
  for (const NcclSum& sum : report.nccl_sums) {
    lines.push_back(fmt::format("  {} on {}: {}, {:.1f} MB, {}", counted(sum.ranks, "rank"),
                                counted(sum.nodes, "node"), word_of(sum.all_reduce.algorithm),
                                sum.bytes * 1e-6, time_text(sum.all_reduce.seconds)));
  }
  lines.emplace_back("sources of the numbers");
  for (const std::string& line : report.from) lines.push_back("  " + line);
  return lines;
}

std::string to_json(const SimulationReport& report) {
  const ComputeModel& compute = report.model.compute;
  nlohmann::ordered_json buckets = nlohmann::json::array(), rows = nlohmann::json::array(),
                         changes = nlohmann::json::array(), sums = nlohmann::json::array();
  for (const PlannedBucket& bucket : report.model.buckets) buckets.push_back(bucket.bytes);
  for (const StepPrediction& row : report.rows) rows.push_back(json_of(row));
  for (const NcclSum& sum : report.nccl_sums) sums.push_back(json_of(sum));
  for (const PlanChange& change : report.changes) {
    nlohmann::ordered_json json = json_of(change.step);
    json["change"] = change.change;
    changes.push_back(json);
  }
  nlohmann::ordered_json json = {
      {"compute",
       {{"before_seconds", compute.before_seconds},
        {"backward_seconds", compute.backward_seconds},
        {"after_seconds", compute.after_seconds},
        {"rest_seconds", compute.rest_seconds}}},
      {"loss", {{"per_second", report.model.loss.per_second}, {"per_byte", report.model.loss.per_byte}}},
      {"node",
       {{"cores", report.model.node.cores}, {"threads_per_rank", report.model.node.threads_per_rank}}},
      {"bucket_bytes", buckets},
      {"predictions", rows},
      {"knee_ranks", knows_no_knee(report) ? nlohmann::ordered_json() : nlohmann::ordered_json(report.knee)},
      {"changes", changes},
      {"from", report.from}};
  if (report.cluster.nccl) {
    json["nccl"] = json_of(*report.cluster.nccl);
    json["nccl_sums"] = sums;
  } else {
    json["between_nodes"] = json_of(report.cluster.between_nodes);
    json["in_node"] = json_of(report.cluster.in_node);
    json["way"] = word_of(report.cluster.way);
  }
  if (report.largest_sum) {
    json["largest_bucket"] = {{"messages", report.largest_sum->messages},
                              {"messages_of_a_node", report.largest_sum->most_sent},
                              {"seconds", report.largest_sum->seconds}};
  }
  if (report.link) {
    json["fit_between_nodes"] = json_of(report.link->waited_for);
    json["fit_beside_compute"] = json_of(report.link->beside_compute);
  }
  if (report.in_node) json["fit_in_node"] = json_of(*report.in_node);
  return json.dump(1) + "\n";
}

}  // namespace lockstep
