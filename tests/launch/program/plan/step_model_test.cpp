// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/step_model.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "core/error.h"
#include "launch/program/plan/fit.h"
#include "launch/program/plan/link_speed.h"
#include "launch/program/plan/report.h"

namespace lockstep {
namespace {

// Steps with 10 ms before backward, 40 ms of backward and 5 ms of optimizer. Gradients become final at even
// intervals over backward.
ComputeModel even_compute(std::vector<double> factors = {1}) {
  ComputeModel compute;
  compute.before_seconds = 0.010;
  compute.backward_seconds = 0.040;
  compute.after_seconds = 0.005;
  compute.factors = std::move(factors);
  compute.arrivals.add(40e6, 0.040);
  return compute;
}

StepModel even_model(const std::vector<std::size_t>& buckets) {
  StepModel model;
  model.compute = even_compute();
  for (const std::size_t bytes : buckets) model.buckets.push_back({.bytes = bytes});
  model.samples_per_rank = 32;
  return model;
}

Cluster nodes(int count, double bytes_per_second, double latency_seconds = 0) {
  Cluster cluster;
  cluster.nodes = count;
  cluster.between_nodes = {.latency_seconds = latency_seconds, .bytes_per_second = bytes_per_second};
  return cluster;
}

TEST(AllReduceCost, FormulaMatchesSimulatedMessages) {
  const Tier tier{.latency_seconds = 1e-3, .bytes_per_second = 1e6, .seconds_per_byte = 1e-7};
  const auto formula = [&](int members, AllReduceWay way) {
    return all_reduce_seconds(96e3, members, way, tier);
  };
  const auto messages = [&](int members, AllReduceWay way) {
    return simulate_all_reduce(96e3, members, way, tier).seconds;
  };
  for (const int members : {1, 2, 4, 8, 32}) {
    const double seconds = formula(members, AllReduceWay::halving);
    EXPECT_NEAR(messages(members, AllReduceWay::halving), seconds, 1e-9) << members;
  }
  for (const int members : {1, 2, 3, 5, 8, 13}) {
    const double seconds = formula(members, AllReduceWay::direct);
    EXPECT_NEAR(messages(members, AllReduceWay::direct), seconds, 1e-9) << members;
  }
  // A message in one piece waits for all of the previous one; a message in several pieces would not.
  for (const int members : {3, 5, 6, 7, 13, 100}) {
    EXPECT_GE(messages(members, AllReduceWay::halving), formula(members, AllReduceWay::halving));
    EXPECT_LE(messages(members, AllReduceWay::halving), 2.5 * formula(members, AllReduceWay::halving))
        << members;
  }
}

TEST(AllReduceCost, MatchesManualCountsForFewMembers) {
  EXPECT_DOUBLE_EQ(all_reduce_path(2, AllReduceWay::halving).volume, 1);
  EXPECT_DOUBLE_EQ(all_reduce_path(4, AllReduceWay::halving).volume, 1.5);
  EXPECT_DOUBLE_EQ(all_reduce_path(4, AllReduceWay::halving).messages, 4);
  // Rank 0 exchanges half of the data with 1, and receives half from 2, which gives the other half to 1.
  EXPECT_DOUBLE_EQ(all_reduce_path(3, AllReduceWay::halving).volume, 1.5);
  EXPECT_DOUBLE_EQ(all_reduce_path(3, AllReduceWay::halving).messages, 4);
  EXPECT_DOUBLE_EQ(all_reduce_path(3, AllReduceWay::direct).volume, 4.0 / 3);
}

// The same choice as in comm: direct sends less between three nodes, and halving needs fewer messages between
// four. If only the number of messages matters, halving wins between five, too.
TEST(AllReduceCost, ChoosesTheFasterAlgorithmByDefault) {
  const Tier slow{.latency_seconds = 1e-5, .bytes_per_second = 1e6};
  const auto is = [&](double bytes, int members, AllReduceWay way) {
    const double shortest = all_reduce_seconds(bytes, members, AllReduceWay::automatic, slow);
    EXPECT_EQ(simulate_all_reduce(bytes, members, AllReduceWay::automatic, slow).messages,
              simulate_all_reduce(bytes, members, way, slow).messages);
    return shortest == all_reduce_seconds(bytes, members, way, slow);
  };
  EXPECT_TRUE(is(1e6, 3, AllReduceWay::direct));
  EXPECT_TRUE(is(1e6, 4, AllReduceWay::halving));
  EXPECT_TRUE(is(1, 5, AllReduceWay::halving));
  EXPECT_DOUBLE_EQ(all_reduce_path(3, AllReduceWay::automatic).volume, 4.0 / 3);
  EXPECT_DOUBLE_EQ(all_reduce_path(4, AllReduceWay::automatic).messages, 4);
  EXPECT_THROW(all_reduce_path(2, AllReduceWay::mpi), Error);
}

TEST(AllReduceCost, MessagesGrowAsNLogN) {
  const Tier tier{.latency_seconds = 1e-6, .bytes_per_second = 1e9};
  for (const int members : {1024, 4096}) {
    const AllReduceRun many = simulate_all_reduce(1 << 20, members, AllReduceWay::halving, tier);
    const auto rounds = static_cast<std::int64_t>(2 * std::log2(members));
    EXPECT_EQ(many.messages, members * rounds);
    EXPECT_EQ(many.most_sent, rounds);
  }
  EXPECT_EQ(simulate_all_reduce(1 << 20, 1024, AllReduceWay::direct, tier).messages, 2LL * 1024 * 1023);
}

TEST(PredictedStep, OneRankEqualsTheMeasurement) {
  const StepPrediction step = predict_step(even_model({40'000'000}), nodes(1, 1));
  EXPECT_DOUBLE_EQ(step.seconds, 0.055);
  EXPECT_DOUBLE_EQ(step.efficiency, 1);
  EXPECT_EQ(step.exposed_seconds, 0);
}

// 40 MB over 1 GB/s take 40 ms. One bucket is exposed completely after backward; of four, the last and the
// queue are exposed.
TEST(PredictedStep, ExposesTheTimeThatBucketsCannotHide) {
  EXPECT_NEAR(predict_step(even_model({40'000'000}), nodes(2, 1e9)).exposed_seconds, 0.040, 1e-9);
  EXPECT_NEAR(
      predict_step(even_model(std::vector<std::size_t>(4, 10'000'000)), nodes(2, 1e9)).exposed_seconds, 0.010,
      1e-9);
  StepModel behind = even_model(std::vector<std::size_t>(4, 10'000'000));
  behind.overlap = false;
  EXPECT_NEAR(predict_step(behind, nodes(2, 1e9)).exposed_seconds, 0.040, 1e-9);
}

TEST(PredictedStep, TinyBucketsCostOnlyLatency) {
  const StepPrediction step =
      predict_step(even_model(std::vector<std::size_t>(10, 4)), nodes(1024, 1e12, 1e-3));
  EXPECT_NEAR(step.exposed_seconds, 10 * 20e-3 - 0.040, 1e-6) << "all ten are final when backward begins";
}

TEST(PredictedStep, MoreRanksOrASlowerLinkNeverShortenIt) {
  StepModel model = even_model(std::vector<std::size_t>(8, 5'000'000));
  model.compute.factors = {0.9, 0.95, 1, 1.02, 1.3};
  double before = 0;
  for (int count = 1; count <= 256; count *= 2) {
    const StepPrediction step = predict_step(model, nodes(count, 1e9, 1e-5));
    EXPECT_GE(step.seconds, before) << count;
    EXPECT_LE(step.low_seconds, step.seconds);
    EXPECT_GE(step.high_seconds, step.seconds);
    EXPECT_GE(predict_step(model, nodes(count, 5e8, 1e-5)).seconds, step.seconds) << count;
    EXPECT_EQ(predict_step(model, nodes(count, 1e9, 1e-5)).seconds, step.seconds);
    before = step.seconds;
  }
}

TEST(PredictedStep, TakesAsLongAsTheSlowestRank) {
  StepModel model = even_model({});
  model.compute.factors = {1, 1, 1, 1, 1, 1, 1, 1, 1, 2};
  EXPECT_NEAR(predict_step(model, nodes(1, 1)).seconds, 0.055, 1e-6);
  EXPECT_NEAR(predict_step(model, nodes(4096, 1e9)).seconds, 0.110, 0.001);
}

// Two cores: two ranks with one thread have one core each; four ranks compute and handle messages half as
// fast.
TEST(PredictedStep, SharedCoresSlowDownCompute) {
  StepModel model = even_model({});
  model.node = {.threads_per_rank = 1, .cores = 2};
  Cluster cluster = nodes(1, 1e9);
  cluster.in_node = {.bytes_per_second = 1e12};
  const auto seconds = [&](int ranks) {
    cluster.ranks_per_node = ranks;
    return predict_step(model, cluster).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(1), 0.055);
  EXPECT_DOUBLE_EQ(seconds(2), 0.055);
  EXPECT_DOUBLE_EQ(seconds(3), 0.0825);
  EXPECT_DOUBLE_EQ(seconds(4), 0.110);
  model.node.threads_per_rank = 0;
  EXPECT_DOUBLE_EQ(seconds(4), 0.055) << "each rank has its own device";

  model.node.threads_per_rank = 1;
  model.buckets = {{.bytes = 40'000'000}};
  cluster.nodes = 2;
  cluster.between_nodes = {.bytes_per_second = 1e15, .seconds_per_byte = 1e-9};
  cluster.ranks_per_node = 2;
  EXPECT_NEAR(predict_step(model, cluster).exposed_seconds, 0.040, 1e-6);
  cluster.ranks_per_node = 4;
  EXPECT_NEAR(predict_step(model, cluster).exposed_seconds, 0.080, 1e-6);
}

// On shared cores, ranks that wait for a late rank leave their cores to it.
TEST(PredictedStep, SharedCoresHaveNoSlowestRank) {
  StepModel model = even_model({});
  model.compute.factors = {1, 1, 1, 1, 1, 1, 1, 1, 1, 2};
  Cluster cluster = nodes(1, 1e9);
  cluster.ranks_per_node = 64;
  cluster.in_node = {.bytes_per_second = 1e12};
  EXPECT_GT(predict_step(model, cluster).seconds, 1.5 * 0.055);
  model.node = {.threads_per_rank = 1, .cores = 32};
  EXPECT_NEAR(predict_step(model, cluster).seconds, 2 * 0.055, 1e-6);
}

// 40 MB in ten buckets. Each of the nine hidden ones costs 1 ms of compute for its 4 MB.
TEST(PredictedStep, HiddenSumsCostComputePerByteOnAnyLink) {
  StepModel model = even_model(std::vector<std::size_t>(10, 4'000'000));
  model.loss.per_byte = 0.25e-9;
  for (const double speed : {2e9, 1.2e9}) {
    const StepPrediction step = predict_step(model, nodes(2, speed));
    EXPECT_NEAR(step.seconds - step.exposed_seconds, 0.055 + 9 * 0.001, 1e-6) << speed;
  }
  model.loss = {.per_second = 0.5};
  const StepPrediction slow = predict_step(model, nodes(2, 1e9));
  const StepPrediction fast = predict_step(model, nodes(2, 4e9));
  EXPECT_GT(slow.seconds - slow.exposed_seconds, fast.seconds - fast.exposed_seconds);
}

TEST(PredictedScaling, FillsANodeBeforeItAddsNodes) {
  Cluster cluster = nodes(6, 1e9);
  cluster.ranks_per_node = 4;
  cluster.in_node = {.bytes_per_second = 1e11};
  std::vector<int> ranks, counts;
  for (const StepPrediction& row : predict_scaling(even_model({1'000'000}), cluster)) {
    ranks.push_back(row.ranks);
    counts.push_back(row.nodes);
  }
  EXPECT_EQ(ranks, (std::vector{1, 2, 4, 8, 16, 24}));
  EXPECT_EQ(counts, (std::vector{1, 1, 1, 2, 4, 6}));
}

Cluster h100_cluster(int count) {
  Cluster cluster;
  cluster.ranks_per_node = 8;
  cluster.nodes = count;
  cluster.nccl = NcclLinks{.ring_bytes_per_second = 370e9,
                           .nvls_bytes_per_second = 480e9,
                           .rails = 8,
                           .rail_bytes_per_second = 50e9};
  return cluster;
}

// 40 MB in one bucket, which nothing hides. NVLS takes 25 us, and 1.75 times the bytes at 480 GB/s.
TEST(PredictedStep, SumsOfGpusTakeTheTimeOfNcclsModel) {
  const double seconds = predict_step(even_model({40'000'000}), h100_cluster(1)).exposed_seconds;
  EXPECT_NEAR(seconds, 25e-6 + 1.75 * 40e6 / 480e9, 1e-9);
}

// bf16 is summed as fp32 from 10 ranks on, unless comm.sum_type = "gradients".
TEST(PredictedStep, SumsThatGpusWidenHaveTwiceTheBytes) {
  const StepModel wide = even_model({40'000'000});
  StepModel narrow = even_model({20'000'000});
  narrow.compute.arrivals = {};
  narrow.compute.arrivals.add(20e6, 0.040);
  narrow.buckets.front().type = DType::bf16;
  narrow.sum_type = SumType::automatic;
  const auto exposed = [](const StepModel& model, int count) {
    return predict_step(model, h100_cluster(count)).exposed_seconds;
  };
  EXPECT_LT(exposed(narrow, 1), exposed(wide, 1)) << "8 ranks";
  EXPECT_DOUBLE_EQ(exposed(narrow, 2), exposed(wide, 2)) << "16 ranks";
  narrow.sum_type = SumType::gradients;
  EXPECT_LT(exposed(narrow, 2), exposed(wide, 2));
}

TEST(PredictedScaling, NamesTheAlgorithmOfNcclForEachSize) {
  const PlanBuckets buckets = [](const BucketMib&) { return even_model({40'000'000}).buckets; };
  const SimulationReport report = simulate(even_model({40'000'000}), h100_cluster(16), buckets, false);
  ASSERT_EQ(report.nccl_sums.size(), report.rows.size() - 1) << "a single rank adds nothing";
  EXPECT_EQ(report.nccl_sums[2].ranks, 8);
  EXPECT_EQ(report.nccl_sums[2].all_reduce.algorithm, NcclAlgorithm::nvls);
  EXPECT_EQ(report.nccl_sums.back().ranks, 128);
  EXPECT_EQ(report.nccl_sums.back().all_reduce.algorithm, NcclAlgorithm::nvls_tree);
  EXPECT_FALSE(report.largest_sum);
  const SimulationReport of_cpus = simulate(even_model({40'000'000}), nodes(4, 1e9), buckets, false);
  EXPECT_TRUE(of_cpus.nccl_sums.empty());
  EXPECT_TRUE(of_cpus.largest_sum);
}

// The network is not given for one node, so a second node never pays.
TEST(Knee, OneNodeOfGpusHasNoNetwork) {
  Cluster cluster = h100_cluster(1);
  cluster.nccl->rail_bytes_per_second = 0;
  EXPECT_EQ(find_knee(even_model({40'000'000}), cluster), 8);
}

// A step is 55 ms. With a latency of 11 ms each doubling adds 22 ms: two ranks reach 2 * 55 / 77 = 1.43 times
// the throughput of one. With 8 ms it is 1.55 times, and more at every further doubling.
TEST(Knee, IsWhereDoublingGainsLessThanHalf) {
  const StepModel model = even_model({4});
  EXPECT_EQ(find_knee(model, nodes(8, 1e12, 0.0001)), 0);
  StepModel behind = model;
  behind.overlap = false;
  EXPECT_EQ(find_knee(behind, nodes(8, 1e12, 0.011)), 1);
  EXPECT_EQ(find_knee(behind, nodes(8, 1e12, 0.008)), 0);
  Cluster fast = nodes(8, 1e8);
  fast.ranks_per_node = 4;
  fast.in_node = {.bytes_per_second = 1e12};
  EXPECT_EQ(find_knee(even_model({40'000'000}), fast), 4) << "the first link between nodes";
}

TEST(Knee, IsNotClaimedForOneNodeWhoseLinkIsNotGiven) {
  Cluster cluster;
  cluster.ranks_per_node = 4;
  cluster.in_node = {.bytes_per_second = 1e12};
  const PlanBuckets buckets = [](const BucketMib&) { return even_model({4}).buckets; };
  const SimulationReport report = simulate(even_model({4}), cluster, buckets, false);
  EXPECT_NE(to_json(report).find("\"knee_ranks\": null"), std::string::npos);
  const std::vector<std::string> lines = to_lines(report);
  const auto knee = std::ranges::find(lines, std::string("knee"));
  ASSERT_LT(knee - lines.begin() + 1, std::ssize(lines));
  EXPECT_NE(std::next(knee)->find("--nodes"), std::string::npos) << *std::next(knee);
}

TEST(PlanChanges, ListOnlyChangesThatShortenTheStep) {
  const PlanBuckets buckets = [](const BucketMib& mib) {
    const auto count = static_cast<std::size_t>(std::max(1.0, 40 / mib[1]));
    return even_model(std::vector<std::size_t>(count, 40'000'000 / count)).buckets;
  };
  const StepModel model = even_model({40'000'000});
  const std::vector<PlanChange> changes = simulate(model, nodes(2, 1e9), buckets, true).changes;
  ASSERT_EQ(changes.size(), 3U);
  EXPECT_EQ(changes[0].change, "comm.bucket_mib = [0.25, 1, 0.25], gradients of 16 bits");
  EXPECT_EQ(changes[2].change, "gradients of 16 bits");
  EXPECT_NEAR(changes[0].step.exposed_seconds, 0.0005, 1e-9);
  EXPECT_NEAR(changes[2].step.exposed_seconds, 0.020, 1e-9);
  EXPECT_TRUE(simulate(model, nodes(2, 1e15), buckets, true).changes.empty());
}

TEST(LinkSpeed, IsParsedInBytesAndBits) {
  EXPECT_DOUBLE_EQ(parse_link_speed("25GB/s,5us", "--link").bytes_per_second, 25e9);
  EXPECT_DOUBLE_EQ(*parse_link_speed("25GB/s,5us", "--link").latency_seconds, 5e-6);
  EXPECT_DOUBLE_EQ(parse_link_speed("200Mb/s", "--link").bytes_per_second, 25e6);
  EXPECT_FALSE(parse_link_speed("200Mb/s", "--link").latency_seconds);
  EXPECT_DOUBLE_EQ(parse_link_speed("1 Gbit/s, 0.2 ms", "--link").bytes_per_second, 125e6);
  EXPECT_DOUBLE_EQ(*parse_link_speed("1 Gbit/s, 0.2 ms", "--link").latency_seconds, 2e-4);
  EXPECT_EQ(parse_link_speed("25GB/s", "--link").rails, 1);
  for (const char* wrong :
       {"",          "fast",    "25",       "25GB",        "0GB/s",          "-1GB/s",      "nanGB/s",
        "1e999GB/s", "25GB/s,", "25GB/s,5", "25GB/s,-5us", "25GB/s,5us,6us", "5us,25GB/s",  "25gb/s",
        "8x",        "x25GB/s", "0x25GB/s", "-8x25GB/s",   "8x8x25GB/s",     "2000x25GB/s", "1.5x25GB/s"}) {
    EXPECT_THROW(parse_link_speed(wrong, "--link"), UsageError) << wrong;
  }
}

TEST(LinkSpeed, CountsNetworkCards) {
  for (const char* text : {"8x25GB/s,5us", "8 x 200 Gb/s , 5 us"}) {
    const LinkSpeed link = parse_link_speed(text, "--link");
    EXPECT_EQ(link.rails, 8) << text;
    EXPECT_DOUBLE_EQ(link.bytes_per_second, 200e9) << text;
    EXPECT_DOUBLE_EQ(link.latency_seconds.value_or(0), 5e-6) << text;
  }
}

TEST(LinkSpeed, TellsTimesFromOtherText) {
  EXPECT_DOUBLE_EQ(parse_time("19.5ms").value_or(0), 19.5e-3);
  EXPECT_DOUBLE_EQ(parse_time("2 s").value_or(0), 2);
  for (const char* other : {"", "trace.json", "20", "20ms.json", "nan.json", "infs"})
    EXPECT_FALSE(parse_time(other)) << other;
}

// Sums of two ranks over links of these speeds, with the times of `truth`.
std::vector<MeasuredSum> sums_of(const TierFit& truth, const std::vector<double>& speeds) {
  std::vector<MeasuredSum> sums;
  for (const double speed : speeds) {
    for (const double bytes : {1e4, 1e5, 1e6, 5e6}) {
      MeasuredSum sum{.messages = 2, .bytes = bytes, .bytes_per_second = speed, .seconds = 0};
      sum.seconds = truth.seconds(sum);
      sums.push_back(sum);
    }
  }
  return sums;
}

TEST(TierFit, RecoversTheSimulatedConstants) {
  const TierFit truth{.latency_seconds = 80e-6, .slowness = 1.05, .seconds_per_byte = 4e-10};
  const TierFit fit = fit_tier(sums_of(truth, {25e6, 125e6}));
  EXPECT_NEAR(fit.latency_seconds, 80e-6, 1e-9);
  EXPECT_NEAR(fit.slowness, 1.05, 1e-6);
  EXPECT_NEAR(fit.seconds_per_byte, 4e-10, 1e-15);
  EXPECT_LT(fit.residual, 1e-6);
  EXPECT_NEAR(fit.at(62.5e6).bytes_per_second, 62.5e6 / 1.05, 1);
}

TEST(TierFit, OneLinkAttributesAllTimeToTheWire) {
  const TierFit truth{.latency_seconds = 80e-6, .slowness = 1 / 25e6, .seconds_per_byte = 0};
  const TierFit fit = fit_tier(sums_of(truth, {0}));
  EXPECT_NEAR(fit.latency_seconds, 80e-6, 1e-9);
  EXPECT_NEAR(fit.at(1).bytes_per_second, 25e6, 1);
}

// A link may pass small messages at once: sums of 100 KB took half of the link's predicted time.
TEST(TierFit, LargeSumsDominate) {
  const TierFit truth{.latency_seconds = 0, .slowness = 1.02, .seconds_per_byte = 3e-9};
  std::vector<MeasuredSum> sums;
  for (const double speed : {25e6, 125e6}) {
    for (const double bytes : {1.7e6, 1.2e6, 1.1e6, 8e4, 1e5}) {
      MeasuredSum sum{.messages = 2, .bytes = bytes, .bytes_per_second = speed, .seconds = 0};
      sum.seconds = truth.seconds(sum) * (bytes < 1e6 ? 0.5 : 1);
      sums.push_back(sum);
    }
  }
  const TierFit fit = fit_tier(sums);
  for (const MeasuredSum& sum : sums) {
    if (sum.bytes > 1e6) {
      EXPECT_NEAR(fit.seconds(sum) / sum.seconds, 1, 0.03);
    }
  }
}

// Compute may keep a message-handling thread from its core.
TEST(LinkFit, SeparatesHiddenFromExposedSums) {
  const TierFit alone{.latency_seconds = 0, .slowness = 1, .seconds_per_byte = 1e-9};
  const TierFit beside{.latency_seconds = 0, .slowness = 1, .seconds_per_byte = 9e-9};
  std::vector<MeasuredSum> sums;
  for (const double speed : {25e6, 125e6}) {
    for (const double share : {1.0, 0.0}) {
      for (const double bytes : {1e6, 3e6}) {
        MeasuredSum sum{.messages = 2, .bytes = bytes, .bytes_per_second = speed, .beside_compute = share};
        sum.seconds = (share > 0 ? beside : alone).seconds(sum);
        sums.push_back(sum);
      }
    }
  }
  const LinkFit fit = fit_link(sums);
  EXPECT_NEAR(fit.waited_for.at(50e6).seconds_per_byte, 1e-9, 1e-15);
  EXPECT_NEAR(fit.beside_compute.at(50e6).seconds_per_byte, 9e-9, 1e-15);
  EXPECT_LT(fit.beside_compute.residual, 1e-6);
  sums.resize(6);  // without waited-for sums over the fast link
  EXPECT_EQ(fit_link(sums).waited_for.seconds_per_byte, fit_tier(sums).seconds_per_byte);
}

// 40 MB, half of which are in flight when backward ends: 20 ms of the 40 ms that they take beside compute.
TEST(PredictedStep, SumsAreFasterAfterCompute) {
  Cluster cluster = nodes(2, 1e9);
  cluster.beside_compute = Tier{.bytes_per_second = 5e8};
  StepModel model = even_model({20'000'000, 20'000'000});
  EXPECT_NEAR(predict_step(model, cluster).exposed_seconds, 0.5 * 0.020 + 0.020, 1e-9);
}

TEST(TierFit, DropsNegativeTermsAndReportsTheError) {
  std::vector<MeasuredSum> sums =
      sums_of({.latency_seconds = 0, .slowness = 1, .seconds_per_byte = 0}, {25e6, 125e6});
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i].seconds *= i % 2 == 0 ? 0.9 : 1.1;
  const TierFit fit = fit_tier(sums);
  EXPECT_GE(fit.latency_seconds, 0);
  EXPECT_GE(fit.seconds_per_byte, 0);
  EXPECT_NEAR(fit.residual, 0.1, 0.05);
  for (MeasuredSum& sum : sums) sum.beside_compute = 0.6;
  EXPECT_NEAR(fit_link(sums).waited_for.residual, 0.1, 0.05) << "no sum ran mostly after compute";
}

}  // namespace
}  // namespace lockstep
