// SPDX-License-Identifier: Apache-2.0
#include "launch/program/plan/gpus/gpu_table.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/text/enum_words.h"
#include "core/text/named_entries.h"
#include "core/text/text.h"
#include "launch/program/config/suggestions.h"

namespace lockstep {
namespace {

// NVIDIA publishes prices of GeForce cards only. Other prices come from these pages.
constexpr std::string_view kReportedPrices = "Hugging Face, hardware pages, 2026";
constexpr std::string_view kA100Sheet = "NVIDIA A100 Tensor Core GPU Datasheet";
constexpr std::string_view kH100Sheet = "NVIDIA H100 Tensor Core GPU Datasheet";
constexpr std::string_view kAdaPaper = "NVIDIA Ada GPU Architecture whitepaper, V2.01";
constexpr std::string_view kAmperePaper = "NVIDIA Ampere GA102 GPU Architecture whitepaper, V2.0";
// Azure's check of a node fails where an NCCL all-reduce of 4 GB reaches less than 228 GB/s of bus bandwidth.
// NCCL counts 240 GB/s for the links.
constexpr std::string_view kA100Links = "Azure/azurehpc-health-checks, conf/nd96amsr_a100_v4.conf";
constexpr std::string_view kV100Sheet = "NVIDIA V100 Tensor Core GPU Datasheet";

// Datasheets since Ampere give tensor rates with sparsity, which are twice as high. GeForce cards sum fp16
// products in fp32 at half of their advertised rate. Compute capabilities: NVIDIA, "CUDA GPU Compute
// Capability".
constexpr GpuFigures kGpus[] = {
    {.name = "b200",
     .product = "NVIDIA B200 SXM",
     .capability = {10, 0},
     .gigabytes = 180,
     .gigabytes_per_second = 8000,
     .fp32_tflops = 80,
     .tf32_tflops = 1100,
     .bf16_tflops = 2250,
     .fp16_tflops = 2250,
     .watts = 1000,
     .source =
         "NVIDIA Blackwell Architecture Technical Brief (HGX B200); memory: MLPerf Inference v6.0 systems",
     .dollars = 40000,
     .price_from = "AI Infra Map, H100 vs H200 vs B200 TCO, 2026"},
    {.name = "h200",
     .product = "NVIDIA H200 SXM",
     .capability = {9, 0},
     .gigabytes = 141,
     .gigabytes_per_second = 4800,
     .fp32_tflops = 67,
     .tf32_tflops = 494.7,
     .bf16_tflops = 989.4,
     .fp16_tflops = 989.4,
     .watts = 700,
     .source = "NVIDIA H200 Tensor Core GPU Datasheet",
     .ring_gigabytes_per_second = 370,
     .nvls_gigabytes_per_second = 475,
     .links_from = "NVIDIA/nccl-tests, issues 212 (ring) and 272",
     .dollars = 32000,
     .price_from = kReportedPrices},
    {.name = "h100",
     .product = "NVIDIA H100 SXM",
     .capability = {9, 0},
     .gigabytes = 80,
     .gigabytes_per_second = 3350,
     .fp32_tflops = 67,
     .tf32_tflops = 494.7,
     .bf16_tflops = 989.4,
     .fp16_tflops = 989.4,
     .watts = 700,
     .source = kH100Sheet,
     .ring_gigabytes_per_second = 370,
     .nvls_gigabytes_per_second = 480,
     .links_from = "NVIDIA/nccl-tests, issue 212",
     .dollars = 30000,
     .price_from = kReportedPrices},
    {.name = "h100-pcie",
     .product = "NVIDIA H100 PCIe",
     .capability = {9, 0},
     .gigabytes = 80,
     .gigabytes_per_second = 2000,
     .fp32_tflops = 51,
     .tf32_tflops = 378,
     .bf16_tflops = 756,
     .fp16_tflops = 756,
     .watts = 350,
     .source = kH100Sheet,
     .dollars = 30000,
     .price_from = kReportedPrices},
    {.name = "a100",
     .product = "NVIDIA A100 SXM 80 GB",
     .capability = {8, 0},
     .gigabytes = 80,
     .gigabytes_per_second = 2039,
     .fp32_tflops = 19.5,
     .tf32_tflops = 156,
     .bf16_tflops = 312,
     .fp16_tflops = 312,
     .watts = 400,
     .source = kA100Sheet,
     .ring_gigabytes_per_second = 228,
     .links_from = kA100Links,
     .dollars = 12500,
     .price_from = "Awesome Agents, NVIDIA A100, 2026"},
    {.name = "a100-40gb",
     .product = "NVIDIA A100 SXM 40 GB",
     .capability = {8, 0},
     .gigabytes = 40,
     .gigabytes_per_second = 1555,
     .fp32_tflops = 19.5,
     .tf32_tflops = 156,
     .bf16_tflops = 312,
     .fp16_tflops = 312,
     .watts = 400,
     .source = kA100Sheet,
     .ring_gigabytes_per_second = 228,
     .links_from = kA100Links},
    {.name = "a40",
     .product = "NVIDIA A40",
     .capability = {8, 6},
     .gigabytes = 48,
     .gigabytes_per_second = 696,
     .fp32_tflops = 37.4,
     .tf32_tflops = 74.8,
     .bf16_tflops = 149.7,
     .fp16_tflops = 149.7,
     .watts = 300,
     .source = "NVIDIA A40 Datasheet"},
    {.name = "a30",
     .product = "NVIDIA A30",
     .capability = {8, 0},
     .gigabytes = 24,
     .gigabytes_per_second = 933,
     .fp32_tflops = 10.3,
     .tf32_tflops = 82,
     .bf16_tflops = 165,
     .fp16_tflops = 165,
     .watts = 165,
     .source = "NVIDIA A30 Tensor Core GPU Datasheet",
     .dollars = 5000,
     .price_from = kReportedPrices},
    {.name = "a10",
     .product = "NVIDIA A10",
     .capability = {8, 6},
     .gigabytes = 24,
     .gigabytes_per_second = 600,
     .fp32_tflops = 31.2,
     .tf32_tflops = 62.5,
     .bf16_tflops = 125,
     .fp16_tflops = 125,
     .watts = 150,
     .source = "NVIDIA A10 Tensor Core GPU Datasheet"},
    {.name = "l40s",
     .product = "NVIDIA L40S",
     .capability = {8, 9},
     .gigabytes = 48,
     .gigabytes_per_second = 864,
     .fp32_tflops = 91.6,
     .tf32_tflops = 183,
     .bf16_tflops = 362,
     .fp16_tflops = 362,
     .watts = 350,
     .source = "NVIDIA L40S Datasheet",
     .dollars = 8500,
     .price_from = kReportedPrices},
    {.name = "l4",
     .product = "NVIDIA L4",
     .capability = {8, 9},
     .gigabytes = 24,
     .gigabytes_per_second = 300,
     .fp32_tflops = 30.3,
     .tf32_tflops = 60,
     .bf16_tflops = 121,
     .fp16_tflops = 121,
     .watts = 72,
     .source = "NVIDIA L4 Tensor Core GPU Datasheet"},
    {.name = "rtx4090",
     .product = "NVIDIA GeForce RTX 4090",
     .capability = {8, 9},
     .gigabytes = 24,
     .gigabytes_per_second = 1008,
     .fp32_tflops = 82.6,
     .tf32_tflops = 82.6,
     .bf16_tflops = 165.2,
     .fp16_tflops = 165.2,
     .watts = 450,
     .source = kAdaPaper,
     .dollars = 1599,
     .price_from = "NVIDIA, announcement of September 2022"},
    {.name = "rtx3090",
     .product = "NVIDIA GeForce RTX 3090",
     .capability = {8, 6},
     .gigabytes = 24,
     .gigabytes_per_second = 936,
     .fp32_tflops = 35.6,
     .tf32_tflops = 35.6,
     .bf16_tflops = 71,
     .fp16_tflops = 71,
     .watts = 350,
     .source = kAmperePaper,
     .dollars = 1499,
     .price_from = "NVIDIA, announcement of September 2020"},
    {.name = "t4",
     .product = "NVIDIA T4",
     .capability = {7, 5},
     .gigabytes = 16,
     .gigabytes_per_second = 300,
     .fp32_tflops = 8.1,
     .fp16_tflops = 65,
     .watts = 70,
     .source = "NVIDIA T4 Tensor Core GPU Datasheet",
     .dollars = 2000,
     .price_from = kReportedPrices},
    {.name = "v100",
     .product = "NVIDIA V100 SXM2 32 GB",
     .capability = {7, 0},
     .gigabytes = 32,
     .gigabytes_per_second = 900,
     .fp32_tflops = 15.7,
     .fp16_tflops = 125,
     .watts = 300,
     .source = kV100Sheet},
    {.name = "v100-16gb",
     .product = "NVIDIA V100 SXM2 16 GB",
     .capability = {7, 0},
     .gigabytes = 16,
     .gigabytes_per_second = 900,
     .fp32_tflops = 15.7,
     .fp16_tflops = 125,
     .watts = 300,
     .source = kV100Sheet},
    // Its fp16 rate, 21.2 TFLOPS, is for sums in fp16.
    {.name = "p100",
     .product = "NVIDIA Tesla P100 SXM2",
     .capability = {6, 0},
     .gigabytes = 16,
     .gigabytes_per_second = 732,
     .fp32_tflops = 10.6,
     .watts = 300,
     .source = "NVIDIA Tesla P100 Datasheet",
     .dollars = 7000,
     .price_from = kReportedPrices},
    {.name = "k80",
     .product = "NVIDIA Tesla K80, one of two GPUs",
     .capability = {3, 7},
     .gigabytes = 12,
     .gigabytes_per_second = 240,
     .fp32_tflops = 4.37,
     .watts = 150,
     .source = "Tesla K80 GPU Accelerator Board Specification, BD-07317-001_v05",
     .dollars = 2500,
     .price_from = "AnandTech, NVIDIA Launches Tesla K80, 2014: half of the board"},
};

std::string plain_name(std::string_view name) {
  std::string text = lower_case(name);
  std::erase_if(text, [](char c) { return c == ' ' || c == '-' || c == '_'; });
  return text;
}

std::string capability_text(ComputeCapability capability) {
  return fmt::format("{}.{}", capability.major, capability.minor);
}

}  // namespace

std::span<const GpuFigures> gpu_table() { return kGpus; }

std::vector<const GpuFigures*> find_gpus(std::span<const std::string> names) {
  std::vector<bool> chosen(std::size(kGpus));
  for (const std::string& name : names) {
    if (plain_name(name) == "all") return find_gpus(names_in(kGpus));
    const auto row = std::ranges::find(kGpus, plain_name(name),
                                       [](const GpuFigures& gpu) { return plain_name(gpu.name); });
    if (row == std::end(kGpus)) {
      const std::vector<std::string> known = names_in(kGpus);
      throw UsageError(fmt::format("--gpu {}: unknown GPU{}; allowed are {}, or all", name,
                                   did_you_mean(nearest(plain_name(name), known)), fmt::join(known, ", ")));
    }
    chosen[static_cast<std::size_t>(row - kGpus)] = true;
  }
  std::vector<const GpuFigures*> rows;
  for (std::size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i]) rows.push_back(&kGpus[i]);
  return rows;
}

double peak_tflops(const GpuFigures& gpu, Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return gpu.fp32_tflops;
    case Precision::tf32:
      return gpu.tf32_tflops;
    case Precision::bf16:
      return gpu.bf16_tflops;
    case Precision::fp16:
      return gpu.fp16_tflops;
    case Precision::automatic:
      break;
  }
  return 0;
}

std::vector<Precision> missing_precisions(const GpuFigures& gpu) {
  std::vector<Precision> missing;
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16})
    if (peak_tflops(gpu, precision) == 0) missing.push_back(precision);
  return missing;
}

std::string precision_words(std::span<const Precision> precisions) {
  std::vector<std::string_view> words;
  for (const Precision precision : precisions) words.push_back(word_of(precision));
  return fmt::format("{}", fmt::join(words, ", "));
}

// NVIDIA's "cuDNN Support Matrix": 9.10.2 lists 5.0 to 12.0, 9.17.0 lists 7.5 to 12.0. CUDA 13 compiles for
// 7.5 and above, CUDA 12 for 5.0 and above ("CUDA Toolkit Release Notes"). "Blackwell Compatibility Guide for
// CUDA Applications": machine code runs on the same major version with the same or a higher minor version,
// PTX on every higher version.
std::string why_unsupported(const GpuFigures& gpu) {
  constexpr ComputeCapability kLowestInCuda13{7, 5}, kLowestInCuda12{5, 0};
  const ComputeCapability has = gpu.capability;
  if (has >= kLowestBuilt) return "";
  const std::string text =
      fmt::format("compute capability {}, but the CUDA backend is built for {} and above",
                  capability_text(has), capability_text(kLowestBuilt));
  if (has >= kLowestInCuda13) {
    return fmt::format(
        "{} by default; a build with -DCMAKE_CUDA_ARCHITECTURES={}{} has code for it, but has never run "
        "there",
        text, has.major, has.minor);
  }
  if (has >= kLowestInCuda12)
    return text + "; CUDA 13 does not support it, and cuDNN's support matrix lists it up to 9.10.2 only";
  return text + "; CUDA 12 and cuDNN 9 do not support it";
}

std::string price_class(const GpuFigures& gpu) {
  if (gpu.dollars == 0) return "not found";
  if (gpu.dollars < 2000) return "below $2,000";
  if (gpu.dollars < 10000) return "$2,000 to $10,000";
  return gpu.dollars < 25000 ? "$10,000 to $25,000" : "above $25,000";
}

}  // namespace lockstep
