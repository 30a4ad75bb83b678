// SPDX-License-Identifier: Apache-2.0
//
// Published figures of NVIDIA GPUs, each with its source, and the GPUs on which the CUDA backend runs.
#pragma once

#include <compare>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/precision.h"

namespace lockstep {

struct ComputeCapability {
  int major = 0;
  int minor = 0;

  auto operator<=>(const ComputeCapability&) const = default;
};

// The lowest one for which the CUDA backend has code by default (CMAKE_CUDA_ARCHITECTURES in CMakeLists.txt).
inline constexpr ComputeCapability kLowestBuilt{8, 0};

// Figures of one GPU; of a board with two GPUs, half of the board. Rates are peaks at boost clock without
// sparsity, in 10^12 operations per second.
struct GpuFigures {
  std::string_view name;  // for --gpu
  std::string_view product;
  ComputeCapability capability;
  double gigabytes = 0;             // of memory
  double gigabytes_per_second = 0;  // of memory
  double fp32_tflops = 0;           // outside tensor cores
  double tf32_tflops = 0;           // the other rates: on tensor cores, summed in fp32; 0: not supported
  double bf16_tflops = 0;
  double fp16_tflops = 0;
  double watts = 0;         // maximum power of the board
  std::string_view source;  // of the figures above
  // NCCL's bus bandwidth between 8 of them in a node, by a ring and where the NVLink switch adds; 0: not
  // found, or its switch does not add.
  double ring_gigabytes_per_second = 0;
  double nvls_gigabytes_per_second = 0;
  std::string_view links_from;  // source of these bandwidths
  int dollars = 0;              // reported price in US dollars, rough; 0: not found
  std::string_view price_from;  // source of the price
};

std::span<const GpuFigures> gpu_table();

// The rows that the names select, each once, in the table's order; "all" selects every row. Letter case,
// blanks, hyphens and underscores of a name are ignored. Throws UsageError for an unknown name; the message
// has the nearest one and lists all.
std::vector<const GpuFigures*> find_gpus(std::span<const std::string> names);

// The peak rate of matrix products in this precision, in 10^12 operations per second; 0: the GPU does not
// support the precision.
double peak_tflops(const GpuFigures& gpu, Precision precision);
// The precisions that the GPU does not support.
std::vector<Precision> missing_precisions(const GpuFigures& gpu);
std::string precision_words(std::span<const Precision> precisions);  // "tf32, bf16"

// Why the CUDA backend does not run on the GPU; empty if it runs.
std::string why_unsupported(const GpuFigures& gpu);

// "$10,000 to $25,000", or "not found".
std::string price_class(const GpuFigures& gpu);

}  // namespace lockstep
