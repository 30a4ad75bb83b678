// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/gpus/gpu_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text/enum_words.h"
#include "core/text/text.h"
#include "core/text/units.h"
#include "launch/program/setup/engine_options.h"
#include "launch/program/setup/network_planning.h"
#include "launch/program/setup/rank_memory.h"
#include "launch/program/setup/reproducible.h"
#include "launch/program/setup/training_data.h"

namespace lockstep {
namespace {

constexpr double kJoulesPerWattHour = 3600;

std::vector<std::string> notes_of(const Config& config, const World& world) {
  std::vector<std::string> notes = {
      fmt::format(
          "samples/s: the upper end is the roofline at the published peaks; the lower end takes {:.0f} % "
          "of it and {:.0f} us more for each kernel, which covers all measured steps of an H200; data, "
          "communication and the optimizer are not included",
          100 * kReachedShare, 1e6 * kSecondsPerKernel),
      "memory: planned with the CPU's kernels, and the largest workspace that a GPU's kernels may take; "
      "images that data.loader keeps on the GPU are not included",
      "energy: of one epoch at the maximum power of the board; the host is not included"};
  if (config.network.recompute != Recompute::nothing)
    notes.emplace_back("train.recompute: the time of the additional forward passes is not included");
  if (world.size() > 1)
    notes.push_back(fmt::format("{}: the rates are those of one GPU, the energy that of all",
                                counted(world.size(), "rank")));
  return notes;
}

std::string estimate_line(const GpuEstimate& row) {
  const GpuFigures& gpu = *row.gpu;
  const std::string start = fmt::format("  {:<9}  {:>3.0f} GB  ", gpu.name, gpu.gigabytes);
  if (!row.refused.empty()) return start + "not supported: " + row.refused;
  const std::string memory =
      fmt::format("{:>9}  {:<4} {:>7}", in_units(row.needed), row.fits() ? "yes" : "no", row.largest_batch);
  if (row.batch == 0) return start + memory + "  not even one sample fits";
  return fmt::format("{}{}  {:>6} to {:<6}  {:>5} to {}", start, memory,
                     short_number(row.samples_per_second.low), short_number(row.samples_per_second.high),
                     short_number(row.epoch_joules.low / kJoulesPerWattHour),
                     short_number(row.epoch_joules.high / kJoulesPerWattHour));
}

std::string figures_line(const GpuFigures& gpu, Precision precision) {
  const double peak = peak_tflops(gpu, precision);
  const std::vector<Precision> missing = missing_precisions(gpu);
  return fmt::format("  {}: {} GB at {} GB/s, {}{} W{} ({}); price {}{}", gpu.product, gpu.gigabytes,
                     gpu.gigabytes_per_second,
                     peak > 0 ? fmt::format("{} TFLOPS in {}, ", peak, word_of(precision)) : "", gpu.watts,
                     missing.empty() ? "" : fmt::format(", no {}", precision_words(missing)), gpu.source,
                     price_class(gpu), gpu.price_from.empty() ? "" : fmt::format(" ({})", gpu.price_from));
}

nlohmann::ordered_json json_of(const Interval& interval, double unit = 1) {
  return {{"low", interval.low / unit}, {"high", interval.high / unit}};
}

nlohmann::ordered_json json_of(const GpuRun& run) {
  return {{"gpu", run.gpu},
          {"batch", run.batch},
          {"samples_per_second", run.samples_per_second},
          {"watts", run.watts > 0 ? nlohmann::ordered_json(run.watts) : nlohmann::ordered_json()},
          {"file", fmt::format("benchmarks/results/{}", run.file)}};
}

nlohmann::ordered_json json_of(const GpuEstimate& row) {
  const GpuFigures& gpu = *row.gpu;
  auto missing = nlohmann::ordered_json::array();
  for (const Precision precision : missing_precisions(gpu)) missing.push_back(word_of(precision));
  nlohmann::ordered_json json = {
      {"name", gpu.name},
      {"product", gpu.product},
      {"supported", why_unsupported(gpu).empty()},
      {"refused", row.refused},
      {"missing_precisions", missing},
      {"published",
       {{"compute_capability", fmt::format("{}.{}", gpu.capability.major, gpu.capability.minor)},
        {"gigabytes", gpu.gigabytes},
        {"gigabytes_per_second", gpu.gigabytes_per_second},
        {"watts", gpu.watts},
        {"source", gpu.source},
        {"price_class", price_class(gpu)},
        {"price_from", gpu.price_from}}}};
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    json["published"][fmt::format("{}_tflops", word_of(precision))] = peak_tflops(gpu, precision);
  if (!row.refused.empty()) return json;
  json["needed_bytes"] = row.needed;
  json["available_bytes"] = row.available;
  json["fits"] = row.fits();
  json["largest_batch"] = row.largest_batch;
  json["batch"] = row.batch;
  json["samples_per_second"] = json_of(row.samples_per_second);
  json["epoch_watt_hours"] = json_of(row.epoch_joules, kJoulesPerWattHour);
  return json;
}

}  // namespace

GpuReport plan_gpus(const std::vector<const GpuFigures*>& gpus, const Config& given, const Registry& registry,
                    const World& world) {
  const Device cpu, gpu{.kind = DeviceKind::cuda};
  Config config = given;
  make_reproducible(config, gpu, world.size());
  require_features_on(config, gpu);
  config.verify.extent = Verify::nothing;  // only the number and the size of the samples matter
  TrainingData data(config, registry.formats, world, cpu, {});
  data.make_loaders(world);
  NetworkPlanning planning(config, find_network(registry.networks, config.model.name), *data.sets.train, cpu,
                           world.size());
  planning.require_batch_norm_values(data.sets.train->size());
  const auto need_of = [&](std::int64_t batch) {
    MemoryPlan plan = planning.memory(batch);
    plan.activations -= std::min(plan.workspace, plan.activations);
    // The CPU's plan has none of the losses that a GPU keeps for each pixel.
    constexpr std::int64_t kLossBytes = 16;
    const ImageShape image = data.sets.train->image_shape();
    if (data.sets.train->has_masks())
      plan.activations += static_cast<std::size_t>(batch * image.height * image.width * kLossBytes);
    return planned_need(config, registry, world, gpu, plan, data.device_bytes(batch, gpu));
  };
  const std::int64_t batch = config.loader.batch, other = batch > 8 ? batch / 2 : 2 * batch;
  const MemoryNeed need = need_of(batch);
  const double difference = static_cast<double>(need.total()) - static_cast<double>(need_of(other).total());
  const std::int64_t samples = data.sets.train->size();
  const GpuWork work{.graph = [&](std::int64_t size) { return planning.build_graph(size); },
                     .precision = config.network.precision,
                     .batch = batch,
                     .most_batch = samples / (world.size() * config.loader.accumulation),
                     .samples = samples,
                     .need = need,
                     .bytes_per_sample = difference / static_cast<double>(batch - other)};
  GpuReport report{.network = config.model.name,
                   .precision = work.precision,
                   .batch = batch,
                   .samples = samples,
                   .need = need,
                   .notes = notes_of(config, world)};
  for (const GpuFigures* each : gpus) {
    report.estimates.push_back(estimate(*each, work));
    const std::vector<GpuRun> runs =
        find_runs(each->name, config.model.name, planning.graph(), work.precision);
    report.runs.insert(report.runs.end(), runs.begin(), runs.end());
  }
  return report;
}

std::vector<std::string> to_lines(const GpuReport& report) {
  std::vector<std::string> lines = {
      fmt::format("estimates for one GPU: {}, {}, batch {}, {} samples in an epoch", report.network,
                  word_of(report.precision), report.batch, report.samples),
      fmt::format("  {:<9}  {:>6}  {:>9}  {:<4} {:>7}  {:^16}  {}", "gpu", "memory", "needed", "fits",
                  "largest", "samples/s", "Wh per epoch")};
  for (const GpuEstimate& row : report.estimates) lines.push_back(estimate_line(row));
  if (!report.runs.empty()) lines.emplace_back("measured, not estimated");
  for (const GpuRun& run : report.runs)
    lines.push_back(fmt::format("  {}, batch {}: {:.0f} samples/s{} (benchmarks/results/{})", run.gpu,
                                run.batch, run.samples_per_second,
                                run.watts > 0 ? fmt::format(" at {:.0f} W", run.watts) : "", run.file));
  lines.emplace_back("the estimates");
  for (const std::string& note : report.notes) lines.push_back("  " + note);
  lines.emplace_back("published figures");
  for (const GpuEstimate& row : report.estimates) lines.push_back(figures_line(*row.gpu, report.precision));
  return lines;
}

std::string to_json(const GpuReport& report) {
  nlohmann::ordered_json gpus = nlohmann::json::array(), runs = nlohmann::json::array();
  for (const GpuEstimate& row : report.estimates) gpus.push_back(json_of(row));
  for (const GpuRun& run : report.runs) runs.push_back(json_of(run));
  const MemoryNeed& need = report.need;
  const nlohmann::ordered_json json = {{"estimate", true},
                                       {"network", report.network},
                                       {"precision", word_of(report.precision)},
                                       {"batch", report.batch},
                                       {"samples", report.samples},
                                       {"planned_bytes",
                                        {{"activations", need.activations},
                                         {"parameters", need.parameters},
                                         {"gradients", need.gradients},
                                         {"optimizer", need.optimizer},
                                         {"codecs", need.codecs},
                                         {"batches", need.batches}}},
                                       {"gpus", gpus},
                                       {"measured", runs},
                                       {"notes", report.notes}};
  return json.dump(1) + "\n";
}

}  // namespace lockstep
