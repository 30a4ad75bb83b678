// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/collective_options.h"

#include <map>

#include <CLI/CLI.hpp>

#include "benchmarks/collective_ways.h"
#include "core/error.h"

namespace lockstep {
namespace {

const std::map<std::string, DType> kTypes = {{"float", DType::f32},
                                             {"half", DType::f16},
                                             {"bfloat16", DType::bf16},
                                             {"int32", DType::i32},
                                             {"uint8", DType::u8}};
const std::map<std::string, ReduceOp> kOps = {
    {"sum", ReduceOp::sum}, {"max", ReduceOp::max}, {"min", ReduceOp::min}};
const std::map<std::string, CollectiveKind> kCollectives = {
    {"all_reduce", CollectiveKind::all_reduce}, {"reduce_scatter", CollectiveKind::reduce_scatter},
    {"all_gather", CollectiveKind::all_gather}, {"all_to_all", CollectiveKind::all_to_all},
    {"broadcast", CollectiveKind::broadcast},   {"barrier", CollectiveKind::barrier}};

template <typename T>
CLI::Validator one_of(const std::map<std::string, T>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  return CLI::IsMember(names).description("");
}

}  // namespace

void CollectiveOptions::add_flags(CLI::App& app) {
  const CLI::AsSizeValue size(false);  // K, M and G are powers of 1024
  app.add_option("-b,--minbytes", min_bytes, "smallest size in bytes; may end with K, M or G")
      ->transform(size)
      ->capture_default_str();
  app.add_option("-e,--maxbytes", max_bytes, "largest size in bytes")->transform(size)->capture_default_str();
  auto* factor = app.add_option("-f,--stepfactor", step_factor, "factor between consecutive sizes")
                     ->check(CLI::Range(2, 1 << 20))
                     ->capture_default_str();
  app.add_option("-i,--stepbytes", step_bytes, "bytes between consecutive sizes; replaces -f")
      ->transform(size)
      ->excludes(factor);
  app.add_option("-n,--iters", iters, "timed turns of each way; the median is reported")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", warmup_iters, "untimed turns before the timed ones")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("-c,--check", check, "0 disables the verification of results")->capture_default_str();
  app.add_option_function<std::string>(
         "-d,--datatype", [this](const std::string& name) { dtype = kTypes.at(name); },
         "float (default), half, bfloat16, int32 or uint8")
      ->check(one_of(kTypes));
  app.add_option_function<std::string>(
         "-o,--op", [this](const std::string& name) { op = kOps.at(name); },
         "sum (default), max or min, for collectives that reduce")
      ->check(one_of(kOps));
  app.add_option_function<std::vector<std::string>>(
         "--collective",
         [this](const std::vector<std::string>& names) {
           collectives.clear();
           for (const std::string& name : names) collectives.push_back(kCollectives.at(name));
         },
         "all_reduce (default), reduce_scatter, all_gather, all_to_all, broadcast or barrier; separate "
         "several with commas")
      ->delimiter(',')
      ->check(one_of(kCollectives));
  app.add_option("--ways", ways,
                 "window, plain, mpi, gloo, nccl or tcp; separate several with commas (default: all but tcp)")
      ->delimiter(',')
      ->check(CLI::IsMember(way_names()).description(""));
}

std::vector<std::size_t> CollectiveOptions::sizes() const {
  if (min_bytes == 0 || min_bytes > max_bytes || step_bytes == 0u) {
    throw UsageError(
        fmt::format("sizes from {} to {} bytes in steps of {}: set --minbytes to at least 1 and at most "
                    "--maxbytes, and --stepbytes to at least 1",
                    min_bytes, max_bytes, step_bytes.value_or(step_factor)));
  }
  std::vector<std::size_t> sizes;
  for (std::size_t size = min_bytes;;) {
    sizes.push_back(size);
    // The next size is compared before it is computed, because it may overflow.
    if (step_bytes ? *step_bytes > max_bytes - size : size > max_bytes / step_factor) return sizes;
    size = step_bytes ? size + *step_bytes : size * step_factor;
  }
}

}  // namespace lockstep
