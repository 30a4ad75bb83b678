// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/simulation.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "comm/gradients/buckets.h"
#include "core/error.h"
#include "core/text/enum_words.h"
#include "core/text/text.h"
#include "launch/program/plan/gpus/gpu_links.h"
#include "launch/program/plan/gpus/gpu_table.h"
#include "launch/program/plan/link_speed.h"
#include "models/precision.h"

namespace lockstep {
namespace {

// Priors for constants that were not measured: NCCL's ring between 8 H100, shared memory of two cores, an
// Ethernet's latency, and the mean slowdown in "Characterizing compute-communication overlap" (arXiv
// 2507.03114).
constexpr Tier kPriorOfGpus = {.latency_seconds = 28e-6, .bytes_per_second = 360e9};
constexpr Tier kPriorOfCpus = {.latency_seconds = 10e-6, .bytes_per_second = 5e9};
constexpr double kPriorLatency = 20e-6;
constexpr double kPriorStretch = 1.19;

void require_possible(const SimulationFlags& flags) {
  if (flags.device_step.empty()) {
    throw UsageError(
        "--ranks needs --device-step FILE, the trace of a run with one rank; make it with lockstep train "
        "CONFIG --trace FILE, or give the time of a step of one device, as in --device-step 19.5ms. To plan "
        "ranks on this machine, start lockstep plan with mpirun");
  }
  if (flags.nodes > flags.ranks || flags.ranks % flags.nodes != 0) {
    throw UsageError(fmt::format(
        "--ranks {} --nodes {}: --ranks must be a multiple of --nodes, because all nodes have the same "
        "number of ranks",
        flags.ranks, flags.nodes));
  }
  if (flags.nodes == 1 && !flags.link.empty())
    throw UsageError(
        fmt::format("--link {}: a single node has no link to other nodes; set --nodes N", flags.link));
  if (flags.nodes > 1 && flags.link.empty() && flags.fits.empty()) {
    throw UsageError(
        "--nodes above 1 needs the link between nodes, as in --link 25GB/s,5us, or traces of runs over a "
        "link with --fit FILE");
  }
}

std::string tier_text(const Tier& tier) {
  return fmt::format("{} per message, {}", time_text(tier.latency_seconds),
                     speed_text(tier.bytes_per_second));
}

std::string fit_text(const TierFit& fit, const Tier& tier) {
  return fmt::format("{}{}, fitted; half of the measured sums are within {:.1f} %", tier_text(tier),
                     tier.seconds_per_byte > 0 ? fmt::format(" and {} per MB to copy and add",
                                                             time_text(tier.seconds_per_byte * 1e6))
                                               : "",
                     100 * fit.residual);
}

// A step of which a third is forward and the rest backward. The time is that of all micro-batches.
StepTrace even_step(double seconds, const Config& config) {
  const double backward = seconds * 2 / 3;
  StepTrace trace{.run = {.network = config.model.name,
                          .batch = config.loader.batch,
                          .accumulation = config.loader.accumulation}};
  trace.steps.push_back({.forward = seconds / 3,
                         .backward = backward,
                         .last_backward = backward / static_cast<double>(config.loader.accumulation),
                         .seconds = seconds});
  return trace;
}

}  // namespace

void add_simulation_flags(CLI::App& app, Command& command) {
  auto& flags = command.own<SimulationFlags>();
  constexpr int kMost = 1 << 20;
  app.add_option("--ranks", flags.ranks,
                 "Predict the steps of N ranks from the trace of one rank (--device-step)")
      ->check(CLI::Range(1, kMost))
      ->type_name("N");
  app.add_option("--nodes", flags.nodes,
                 "Nodes of the predicted cluster, all with the same number of ranks (default 1)")
      ->check(CLI::Range(1, kMost))
      ->type_name("N");
  app.add_option(
         "--link", flags.link,
         "Link from each node to the other nodes: speed per direction in GB/s, MB/s (bytes) or Gb/s, Mb/s "
         "(bits), and latency per message, as in 25GB/s,5us; for several network cards their number, as in "
         "8x25GB/s")
      ->type_name("[CARDSx]SPEED[,LATENCY]");
  app.add_option(
         "--node-link", flags.node_link,
         "Link from each rank to the other ranks of its node, as in 20GB/s,5us. GPUs: the bus bandwidth "
         "of NCCL's ring in a node (busbw of nccl-tests)")
      ->type_name("SPEED[,LATENCY]");
  app.add_option(
         "--device-step", flags.device_step,
         "Trace of one rank that trains this configuration (lockstep train CONFIG --trace FILE), or the "
         "time of a step of one device that was measured elsewhere, as in 19.5ms")
      ->type_name("FILE|TIME");
  app.add_option("--fit", flags.fits,
                 "Trace of several ranks, to which latency, bandwidth and slowdown are fitted, with the "
                 "nominal speed of its link, as in two.json@200Mb/s; repeatable")
      ->type_name("FILE[@SPEED]")
      ->allow_extra_args(false);
  app.add_option("--stretch", flags.stretch,
                 fmt::format("Factor by which compute takes longer while gradients are summed (default: "
                             "fitted to --fit, else {})",
                             kPriorStretch))
      ->check(number_between(1, 100))
      ->type_name("FACTOR");
  app.add_option(
         "--cores", flags.cores,
         "Cores of a node, which its ranks share: with more compute threads than cores, compute and the "
         "handling of messages slow down by that ratio (default: the cores of the traced node)")
      ->check(CLI::Range(1, kMost))
      ->type_name("N");
  app.add_option("--gpu", flags.gpus,
                 "Estimate memory, samples/s and energy on GPUs that are not present: names as in h100,l4 or "
                 "all; repeatable. With --ranks: the GPU of the cluster, for NCCL's model")
      ->type_name("NAME[,NAME]")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--json", flags.json, "Write the prediction or the estimates to this file")
      ->type_name("FILE");
}

void require_ranks(const SimulationFlags& flags) {
  const bool gpus = !flags.gpus.empty();
  if (flags.ranks > 0 && find_gpus(flags.gpus).size() > 1)
    throw UsageError("--ranks predicts a cluster of one kind of GPU; give one name, as in --gpu h100");
  if (flags.ranks > 0) return;
  const std::pair<const char*, bool> others[] = {{"--nodes", flags.nodes != 1},
                                                 {"--link", !flags.link.empty()},
                                                 {"--node-link", !flags.node_link.empty()},
                                                 {"--cores", flags.cores > 0},
                                                 {"--device-step", !flags.device_step.empty()},
                                                 {"--fit", !flags.fits.empty()},
                                                 {"--stretch", flags.stretch > 0},
                                                 {"--json", !flags.json.empty() && !gpus}};
  for (const auto& [name, given] : others)
    if (given) throw UsageError(fmt::format("{} needs --ranks N, the number of ranks to predict", name));
}

PlanSimulation::PlanSimulation(const SimulationFlags& flags, const Config& config)
    : flags_(flags), config_(config) {
  require_possible(flags);
  if (flags.nodes > 1 && config.between_nodes == AllReduceWay::mpi && flags.gpus.empty()) {
    throw ConfigError(
        "comm.between_nodes = mpi: MPI's own sums have no model; predict with --set "
        "comm.between_nodes=halving");
  }
  if (!flags.link.empty()) parse_link_speed(flags.link, "--link");
  if (!flags.node_link.empty() && parse_link_speed(flags.node_link, "--node-link").rails > 1)
    throw UsageError(
        fmt::format("--node-link {}: only --link has a number of network cards", flags.node_link));
  if (const std::optional<double> seconds = parse_time(flags.device_step)) {
    if (*seconds <= 0)
      throw UsageError(fmt::format("--device-step {}: the time must be above 0", flags.device_step));
    if (!flags.fits.empty())
      throw UsageError(fmt::format("--device-step {}: --fit needs a trace of one rank in place of a time",
                                   flags.device_step));
    step_is_given_ = true;
    device_ = even_step(*seconds, config);
  } else if (number_from<double>(flags.device_step)) {
    throw UsageError(
        fmt::format("--device-step {}: a unit is missing, as in {}ms", flags.device_step, flags.device_step));
  } else {
    device_ = read_step_trace(flags.device_step);
    require_same_run(device_, flags.device_step);
    if (!flags.gpus.empty() && device_.run.threads > 0) {
      throw UsageError(
          fmt::format("--gpu {}: {} is the trace of a CPU; give a trace of this GPU, or the time of its "
                      "step, as in --device-step 19.5ms",
                      flags.gpus.front(), flags.device_step));
    }
  }
  if (flags.cores > 0 && device_.run.threads == 0) {
    throw UsageError(
        fmt::format("--cores {}: --device-step {} does not record the threads of a rank, which share the "
                    "cores; remove --cores, or give the trace of a CPU",
                    flags.cores, flags.device_step));
  }
  if (!device_.run.overlap) {
    throw ConfigError(fmt::format(
        "{} was traced with comm.overlap = false and does not record when gradients were final; trace "
        "with comm.overlap = true",
        flags.device_step));
  }
  for (const std::string& fit : flags.fits) {
    std::error_code unknown;
    const bool whole = std::filesystem::exists(fit, unknown);  // a path that contains '@', without a speed
    const std::size_t at = whole ? std::string::npos : fit.rfind('@');
    const std::string file = fit.substr(0, at);
    Fit& read = fits_.emplace_back(Fit{.trace = read_step_trace(file)});
    require_same_run(read.trace, file);
    if (at != std::string::npos)
      read.bytes_per_second = parse_link_speed(fit.substr(at + 1), "--fit").bytes_per_second;
    if ((read.bytes_per_second > 0) != (fits_.front().bytes_per_second > 0) ||
        (read.bytes_per_second <= 0 && read.trace.run.nodes > 1 && !flags.link.empty())) {
      throw UsageError(fmt::format(
          "--fit {}: every --fit needs the nominal speed of its link, as in {}@200Mb/s", fit, file));
    }
    measured_sums(read.trace, read.bytes_per_second);  // throws for a trace without a usable link
  }
  if (!flags.gpus.empty() && !measures_sums()) gpu_links(flags);  // throws where it knows no bandwidth
  if (flags.nodes == 1 || !flags.link.empty()) return;
  const std::vector<MeasuredSum> sums = sums_between_nodes();
  if (sums.empty())
    throw UsageError(
        "--fit has no trace of several nodes; set the link between nodes, as in --link 25GB/s,5us");
  if (sums.front().bytes_per_second > 0)
    throw UsageError("--fit gives the speeds of links; set the speed to predict, too, as in --link 500Mb/s");
}

void PlanSimulation::require_same_run(const StepTrace& trace, const std::string& file) const {
  const TracedRun& run = trace.run;
  const auto require = [&](const char* key, const auto& traced, const auto& given) {
    if (traced == given) return;
    throw ConfigError(fmt::format(
        "{} was traced with {} = {}, but the configuration has {}; trace this configuration, or change "
        "the key with --set",
        file, key, traced, given));
  };
  require("model.name", run.network, config_.model.name);
  require("train.batch", run.batch, config_.loader.batch);
  require("train.accumulation", run.accumulation, config_.loader.accumulation);
  if (run.threads > 0 && config_.threads > 0) require("train.threads", run.threads, config_.threads);
}

SumType PlanSimulation::sum_type(bool on_gpu) const {
  if (config_.reproducible) return SumType::f32;  // comm/gradients/micro_batch_sums.h
  return on_gpu ? config_.gradients.sum_type : SumType::gradients;
}

std::vector<MeasuredSum> PlanSimulation::sums_of(const StepTrace& trace, double bytes_per_second) const {
  std::vector<MeasuredSum> sums = measured_sums(trace, bytes_per_second);
  const DType type = storage_type(config_.network.precision);
  if (!sums_in_f32(sum_type(trace.run.threads == 0), type, trace.run.ranks)) return sums;
  for (MeasuredSum& sum : sums) sum.bytes *= static_cast<double>(sizeof(float) / size_of(type));
  return sums;
}

std::vector<MeasuredSum> PlanSimulation::sums_between_nodes() const {
  std::vector<MeasuredSum> sums;
  for (const Fit& fit : fits_) {
    if (fit.trace.run.nodes == 1) continue;
    const std::vector<MeasuredSum> of_run = sums_of(fit.trace, fit.bytes_per_second);
    sums.insert(sums.end(), of_run.begin(), of_run.end());
  }
  return sums;
}

// The memory of a node has no nominal speed: 0.
std::vector<MeasuredSum> PlanSimulation::sums_in_node() const {
  std::vector<MeasuredSum> sums;
  const auto add = [&](const StepTrace& trace) {
    if (trace.run.nodes > 1 || trace.run.ranks == 1) return;
    const std::vector<MeasuredSum> of_run = sums_of(trace, 0);
    sums.insert(sums.end(), of_run.begin(), of_run.end());
  };
  for (const Fit& fit : fits_) add(fit.trace);
  if (sums.empty()) add(device_);
  return sums;
}

bool PlanSimulation::measures_sums() const {
  return !sums_between_nodes().empty() || !sums_in_node().empty();
}

// On a CPU the processing of messages slows down as compute does, so the pace also scales seconds_per_byte.
double PlanSimulation::choose_pace(const ComputeModel& compute, SimulationReport& about) const {
  std::vector<StepTrace> runs;
  for (const Fit& fit : fits_)
    if (fit.trace.run.nodes > 1) runs.push_back(fit.trace);
  if (runs.empty()) return 1;
  const double pace = pace_beside(compute, runs);
  about.from.push_back(fmt::format(
      "the traced device takes {:.2f} times as long as the fitted runs to compute, copy and add", pace));
  return pace;
}

void PlanSimulation::choose_between_nodes(Cluster& cluster, double pace, SimulationReport& about) const {
  if (cluster.nodes == 1) return;
  const std::string start = fmt::format("between nodes (comm.between_nodes = {}): ", word_of(cluster.way));
  const std::vector<MeasuredSum> sums = sums_between_nodes();
  if (!sums.empty()) {
    about.link = fit_link(sums);
    about.link->waited_for.seconds_per_byte *= pace;
    about.link->beside_compute.seconds_per_byte *= pace;
  }
  Tier& tier = cluster.between_nodes;
  if (!about.link) {
    const LinkSpeed link = parse_link_speed(flags_.link, "--link");
    tier = {.latency_seconds = link.latency_seconds.value_or(kPriorLatency),
            .bytes_per_second = link.bytes_per_second};
    about.from.push_back(start + tier_text(tier) +
                         (link.latency_seconds ? ", as given" : "; the latency is assumed, not measured"));
    return;
  }
  const LinkSpeed link =
      flags_.link.empty() ? LinkSpeed{.bytes_per_second = 1} : parse_link_speed(flags_.link, "--link");
  const auto tier_of = [&](const TierFit& fit, const char* when) {
    Tier fitted = fit.at(link.bytes_per_second);
    if (link.latency_seconds) fitted.latency_seconds = *link.latency_seconds;
    about.from.push_back(start + when + fit_text(fit, fitted));
    return fitted;
  };
  tier = tier_of(about.link->waited_for, "");
  cluster.beside_compute = tier_of(about.link->beside_compute, "during compute ");
}

void PlanSimulation::choose_in_node(Cluster& cluster, SimulationReport& about, bool on_gpu) const {
  const Tier prior = on_gpu ? kPriorOfGpus : kPriorOfCpus;
  cluster.in_node = prior;
  if (cluster.ranks_per_node == 1) return;
  const std::string start = "in a node: ";
  if (!flags_.node_link.empty()) {
    const LinkSpeed link = parse_link_speed(flags_.node_link, "--node-link");
    cluster.in_node = {.latency_seconds = link.latency_seconds.value_or(prior.latency_seconds),
                       .bytes_per_second = link.bytes_per_second};
    about.from.push_back(start + tier_text(cluster.in_node) +
                         (link.latency_seconds ? ", as given" : "; the latency is assumed, not measured"));
    return;
  }
  if (const std::vector<MeasuredSum> sums = sums_in_node(); !sums.empty()) {
    about.in_node = fit_tier(sums);
    cluster.in_node = about.in_node->at(1);
    about.from.push_back(start + fit_text(*about.in_node, cluster.in_node));
    return;
  }
  about.from.push_back(fmt::format("{}{}, assumed, not measured: {}; set --node-link", start,
                                   tier_text(prior),
                                   on_gpu ? "8 H100 with NVLink" : "two cores that share memory"));
}

NodeCores PlanSimulation::choose_cores(SimulationReport& about) const {
  const TracedRun& run = device_.run;
  const NodeCores node{.threads_per_rank = run.threads,
                       .cores = flags_.cores > 0 ? flags_.cores : run.node_cores};
  const int ranks = flags_.ranks / flags_.nodes;
  if (run.threads == 0) return node;
  about.from.push_back(fmt::format(
      "cores of a node: {}{}, for {} with {} each: compute takes {:.2f} times as long as with enough cores",
      node.cores, flags_.cores > 0 ? ", as given" : ", as on the traced node (--cores changes it)",
      counted(ranks, "rank"), counted(run.threads, "thread"), node.slowdown(ranks)));
  return node;
}

ComputeLoss PlanSimulation::choose_loss(const ComputeModel& compute, SimulationReport& about) const {
  const auto say = [&](const ComputeLoss& loss, const char* from) {
    about.from.push_back(
        fmt::format("compute lost during sums: {:.1f} % of its time, and {} per MB that a rank sends, {}",
                    100 * loss.per_second, time_text(1e6 * loss.per_byte), from));
    return loss;
  };
  const auto by_stretch = [](double stretch) { return ComputeLoss{.per_second = 1 - 1 / stretch}; };
  if (flags_.stretch > 0) return say(by_stretch(flags_.stretch), "as given");
  std::vector<StepTrace> traces;
  for (const Fit& fit : fits_) traces.push_back(fit.trace);
  if (!traces.empty()) return say(fit_loss(compute, traces), "fitted");
  return say(by_stretch(kPriorStretch), "assumed, not measured: the mean of published measurements on GPUs");
}

SimulationReport PlanSimulation::report(Network& network) const {
  const std::span<const Parameter> parameters = network.parameters();
  const auto buckets = [&](const BucketMib& mib) {
    GradientSettings settings = config_.gradients;
    settings.bucket_mib = mib;
    settings.codec = settings.codec_for = kDenseSum.name;
    const BucketPlan plan(parameters, bucket_options(settings).capacities(), flags_.ranks);
    std::vector<PlannedBucket> planned;
    for (const Bucket& bucket : plan.buckets())
      planned.push_back({.bytes = bucket.bytes(), .type = bucket.type});
    return planned;
  };
  SimulationReport about;
  const bool on_gpu = !flags_.gpus.empty() || !is_host_memory(network.device());
  StepModel model{.compute = ComputeModel::of(device_).slowed(1 / slowdown_of(device_.run)),
                  .buckets = buckets(config_.gradients.bucket_mib),
                  .sum_type = sum_type(on_gpu),
                  .overlap = config_.gradients.overlap,
                  .samples_per_rank = config_.loader.batch * config_.loader.accumulation};
  std::size_t planned = 0;
  bool widens = false;
  for (const PlannedBucket& bucket : model.buckets) {
    planned += bucket.bytes;
    widens |= sums_in_f32(model.sum_type, bucket.type, flags_.ranks);
  }
  if (step_is_given_) {
    model.compute.arrivals.add(static_cast<double>(planned), model.compute.backward_seconds);
  } else if (planned != device_.run.gradient_bytes()) {
    throw ConfigError(fmt::format(
        "{} has {} bytes of gradients, but the configuration has {}: the number of classes, an option of "
        "the network or train.precision differs; trace this configuration",
        flags_.device_step, device_.run.gradient_bytes(), planned));
  }
  about.from.push_back(
      step_is_given_
          ? fmt::format(
                "step of one device: {}, as given; assumed are a third of it for forward, and gradients "
                "that become final at even intervals in backward",
                time_text(model.compute.step_seconds()))
          : fmt::format("step of one device: {:.1f} ms, the median of {} of rank 0 of {}",
                        model.compute.step_seconds() * 1e3, counted(device_.steps.size(), "traced step"),
                        counted(device_.run.ranks, "rank")));
  model.node = choose_cores(about);
  // Measured sums of NCCL are modelled as automatic: NCCL also chooses the faster algorithm. On CPUs "mpi" is
  // allowed for one node only, which sums nothing between nodes.
  Cluster cluster{.ranks_per_node = flags_.ranks / flags_.nodes,
                  .nodes = flags_.nodes,
                  .way = on_gpu || config_.between_nodes == AllReduceWay::mpi ? AllReduceWay::automatic
                                                                              : config_.between_nodes};
  if (on_gpu && !measures_sums()) {
    const GpuLinks given = gpu_links(flags_);
    cluster.nccl = given.links;
    about.from.insert(about.from.end(), given.from.begin(), given.from.end());
  } else {
    if (on_gpu) about.from.emplace_back("all-reduce: as traces measured it, without NCCL's model");
    choose_between_nodes(cluster, on_gpu ? 1 : choose_pace(model.compute, about), about);
    choose_in_node(cluster, about, on_gpu);
  }
  model.loss = choose_loss(model.compute, about);
  if (widens) {
    about.from.push_back(
        fmt::format("gradients of 16 bits: sent as fp32 between {} ({})", counted(flags_.ranks, "rank"),
                    config_.reproducible ? "train.reproducible = true"
                                         : fmt::format("comm.sum_type = {}", word_of(model.sum_type))));
  }
  // fp16 stays narrow in sums over more ranks than bf16.
  const bool wide = !sums_in_f32(model.sum_type, DType::f16, flags_.ranks) &&
                    std::ranges::all_of(parameters, [](const Parameter& parameter) {
                      return parameter.gradient_type == DType::f32;
                    });
  if (wide) about.from.emplace_back("gradients of 16 bits: half the bytes, with the same compute");
  about.from.emplace_back(
      step_is_given_ ? "slowest of n ranks: not included, because the given step has no spread"
      : model.node.slowdown(cluster.ranks_per_node) > 1
          ? "slowest of n nodes: drawn from the traced steps; a late rank uses the cores of the ranks that "
            "wait for it"
          : "slowest of n ranks: drawn from the traced steps, as if ranks were late independently");
  if (config_.gradients.codec != kDenseSum.name)
    about.from.push_back(fmt::format("comm.codec = {}: predicted as the dense sum", config_.gradients.codec));
  if (config_.gradients.codec_for != kDenseSum.name)
    about.from.push_back(
        fmt::format("comm.codec_for = {}: predicted as the dense sum", config_.gradients.codec_for));
  if (config_.gradients.exchange == ExchangeForm::sharded)
    about.from.emplace_back("comm.exchange = sharded: predicted as the dense sum");
  if (config_.trainer.average_every > 1)
    about.from.push_back(fmt::format("train.average_every = {}: predicted as the dense sum in every step",
                                     config_.trainer.average_every));
  if (config_.trainer.topology == Topology::ring)
    about.from.emplace_back("comm.topology = ring: predicted as the dense sum");
  if (config_.gradients.staleness > 0)
    about.from.push_back(fmt::format("train.staleness = {}: predicted as the dense sum of the same step",
                                     config_.gradients.staleness));
  if (config_.model.sync_batch_norm)
    about.from.emplace_back("model.sync_batch_norm: the exchanges of its layers are not included");
  SimulationReport report = simulate(model, cluster, buckets, wide);
  report.link = about.link;
  report.in_node = about.in_node;
  report.from = about.from;
  return report;
}

}  // namespace lockstep
