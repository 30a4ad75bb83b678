// SPDX-License-Identifier: Apache-2.0
//
// Config: everything a run is told, read from TOML (a shipped preset or a file) and `--set
// section.key=value`. Where a part of the engine has a struct of options that a person can give as they are,
// the section is that struct. One table of keys (config_keys.cpp) drives parsing, checking, printing,
// suggestions and the pages for people. Every rank reads its own; ranks compare texts before step 1.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "data/batch_loader.h"
#include "data/verify.h"
#include "launch/registry.h"
#include "models/optimizer.h"
#include "models/precision.h"

namespace lockstep {

struct Config {
  NetworkChoice model;
  struct {
    std::string format = "idx";
    std::string path;
    std::vector<double> mean;       // per channel, pixels in [0, 1]; empty: 0
    std::vector<double> deviation;  // per channel; empty: 1
    Tail tail = Tail::drop;
    std::int64_t crop_padding = 0;  // pixels
    bool horizontal_flip = false;
    std::int64_t loader_threads = 1;
    Verify verify = Verify::headers;
  } data;
  struct {
    std::int64_t batch = 32;  // per rank and micro-batch
    std::int64_t accumulation = 1;
    std::int64_t epochs = 1;
    std::int64_t steps = 0;  // stop after; 0: run all epochs
    std::int64_t seed = 1;
    bool recompute = false;
    bool reproducible = false;
    std::int64_t threads = 0;  // compute threads per rank; 0: cores / local ranks
    double label_smoothing = 0;
    Precision precision = Precision::fp32;
    double loss_scale = 65536;  // fp16: where it starts
    bool cuda_graph = true;
    std::int64_t loss_scale_interval = 2000;  // fp16: good steps until it doubles; 0: it stays
  } train;
  struct : OptimizerSettings {
    double learning_rate = 0.1;  // load_config chooses it and warmup_epochs where they are left out
  } optimizer;
  struct {
    std::string name = "constant";   // one of schedule_names()
    double warmup_epochs = 0;        // linear, from learning_rate / warm-up steps
    std::vector<double> milestones;  // step: epochs at which the rate is multiplied by gamma; ascending
    double gamma = 0.1;
    double final_fraction = 0;  // cosine: ends at learning_rate * final_fraction
  } schedule;
  struct {
    bool overlap = true;
    std::array<double, 3> bucket_mib = {1, 25, 1};  // first, middle, last; each > 0
    std::int64_t max_ctas = 0;                      // NCCL's thread blocks; 0: its own choice
    bool register_buckets = true;                   // with NCCL
    CallCheck check = CallCheck::plan;
    double timeout = 1800;  // seconds; 0: never
  } comm;
  struct {
    std::string choose = "time";  // time, direct, winograd, tiled winograd
    std::string cache = "auto";   // folder; auto: default_kernel_cache(); none: keep nothing
  } kernels;
  struct {
    std::string device = "auto";  // auto, cpu, cuda
    bool share_device = false;    // several ranks on one GPU, for correctness only
  } world;
  struct {
    std::string dir = "runs/latest";
  } run;
};

// Reads a preset by name, or a file by path (anything with a '/' or ending in .toml), then applies overrides
// ("section.key=value", the value in TOML; a bare word counts as a string) in order and checks every value.
// Where no learning rate is given, it and the warm-up are chosen: see config_defaults.h.
// Throws ConfigError with everything that is wrong, a line each: file and line where it is in one, the key,
// what was given and what is allowed, the nearest key for an unknown one. A line that is not TOML is told
// with its column, and beside it what is wrong in the others (see toml_text.h), but not what may be missing.
// An unknown preset names the nearest one, or the file that may be meant, and lists all. Throws IoError for a
// file that cannot be read.
Config load_config(const std::string& preset_or_path, std::span<const std::string> overrides,
                   const Registry& registry = {});

// TOML of every key, in the table's order; load_config of it gives the same Config, and the same text.
std::string to_toml(const Config& config);

// "section.key" of the first line in which two to_toml texts differ, with both values:
// "train.batch: 32 against 64"; empty when equal.
std::string first_difference(const std::string& toml, const std::string& other);

// Names of the presets, sorted; those that are shipped are launch/presets/NAME.toml, built into the program.
std::vector<std::string> preset_names(const Registry& registry = {});

// For each key its name and default, and indented below it what it is and what is allowed. For --help.
std::string describe_keys(const Registry& registry = {});

// The same as a page in Markdown, a table for each section: launch/configuration.md.
std::string keys_as_markdown(const Registry& registry = {});

}  // namespace lockstep
