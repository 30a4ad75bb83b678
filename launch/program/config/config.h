// SPDX-License-Identifier: Apache-2.0
//
// Config: all settings of a run, read from TOML (a shipped preset or a file) and `--set section.key=value`.
// It holds the options structs of the engine's parts. One table of keys (config_keys.cpp) gives their members
// names, and drives parsing, checking, printing, suggestions and the documentation. Every rank reads its own
// configuration; ranks compare the texts before step 1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradients/buckets.h"
#include "comm/world.h"
#include "data/batch_loader.h"
#include "data/sets/preloaded.h"
#include "data/sets/verify.h"
#include "launch/observe/account/busy_watch.h"
#include "launch/observe/profile/schedule.h"
#include "launch/observe/prometheus/prometheus_options.h"
#include "launch/program/config/export_precision.h"
#include "launch/program/devices/device_choice.h"
#include "launch/program/devices/kernel_cache.h"
#include "launch/program/registry.h"
#include "launch/train/checkpoint/settings.h"
#include "launch/train/evaluation/best_evaluation.h"
#include "launch/train/trainer.h"
#include "models/network.h"
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

// Members without a key are filled in by the run: see engine_options.h.
struct Config {
  NetworkChoice model;
  DatasetOptions dataset;
  VerifyOptions verify;
  LoaderOptions loader;
  LoaderMode loader_mode = LoaderMode::automatic;
  PreloadTime preload_time = PreloadTime::during;
  AugmentOn augment_on = AugmentOn::automatic;
  bool augments_on_host() const {
    return augment_on == AugmentOn::host && network.augmentation.changes_bytes();
  }
  NetworkOptions network;
  // A value is "auto" and must be measured before a training can be built.
  bool is_incomplete() const { return loader.batch == 0 || network.precision == Precision::automatic; }
  LossScaleOptions loss_scale = {.initial = 65536, .rule = {.interval = 2000}};  // in fp16
  TrainerOptions trainer;
  std::int64_t until_epoch = 0;  // stop after this number of epochs; 0: run all
  std::int64_t threads = 0;      // compute threads per rank; 0: cores / local ranks, or one fewer
  bool reproducible = false;
  OptimizerSettings optimizer;
  ScheduleSettings schedule;  // load_config chooses a learning rate and warm-up that are not given
  bool rate_is_given = true;  // false: load_config chose it for loader.batch
  GradientSettings gradients;
  DeviceCommunicatorOptions device_communicator;
  CallCheck check = CallCheck::plan;
  AllReduceWay between_nodes = AllReduceWay::automatic;
  std::int64_t communication_niceness = 0;  // of the communication thread; 0: that of the process
  double timeout_seconds = 0;               // for ranks that wait for peers; 0: derived from step times
  KernelSettings kernels;
  DeviceSettings device;
  std::string run_dir = "runs/latest";
  ExportPrecision export_precision = ExportPrecision::fp32;
  std::string metrics = "none";  // see metric_choice()
  bool measure_peak = true;
  BusyOptions busy;
  BestSettings best;
  CheckpointSettings checkpoints;
  ProfileSettings profile;
  double monitor_seconds = 1;  // from one sample of a DeviceMonitor to the next; 0: none
  PrometheusOptions prometheus;
  std::int64_t log_every = 50;        // steps of an epoch per line of steps.jsonl; 0: none
  std::int64_t histograms_every = 0;  // epochs from one with histograms to the next; 0: none
  double price_per_kwh = 0;           // of energy, in any currency; 0: not given
  std::int64_t check_every = 1000;    // steps from one DesyncCheck to the next; 0: none
  // check_every, or 0 where ranks differ by design.
  std::int64_t compared_every() const { return trainer.average_every > 1 ? 0 : check_every; }
};

// Reads a preset by name, or a file by path (anything with a '/' or ending in .toml), then applies overrides
// ("section.key=value", the value in TOML; a bare word counts as a string) in order and checks every value.
// If no learning rate is given, it and the warm-up are chosen: see config_defaults.h.
// Throws ConfigError with all errors, one per line: file and line, the key, the given and the allowed values,
// and the nearest key for an unknown one. A line that is not TOML is reported with its column; errors in the
// other lines are still reported (see toml_text.h), but missing keys are not. An unknown preset is reported
// with the nearest preset or file and a list of all. Throws IoError for a file that cannot be read.
Config load_config(const std::string& preset_or_path, std::span<const std::string> overrides,
                   const Registry& registry = {});

// Throws ConfigError if an override is wrong in any configuration: an unknown key, or a value that the key
// does not allow. layers: those of the configuration, for model.layer.NAME.FIELD.
void check_override(const std::string& override_text, const Registry& registry = {},
                    std::span<const LayerSpec> layers = {});

// A Config from overrides only; all other keys have their defaults. Throws ConfigError.
Config config_of(std::span<const std::string> overrides, const Registry& registry = {});

// TOML of every key, in the table's order. load_config() of it gives the same Config and the same text,
// except for secrets, which are written as kRedacted. A comment replaces a learning rate that load_config()
// chooses once train.batch = "auto" is found.
std::string to_toml(const Config& config, const Registry& registry = {});

// The first difference of two to_toml texts: a key with both values, "train.batch: 32 against 64" or
// "train.batch: nothing against 64", or the order of their keys; empty when equal.
std::string first_difference(const std::string& toml, const std::string& other);

// A key in which two to_toml texts differ; a value is empty where the text does not have the key.
struct KeyDifference {
  std::string key, value, other;
};
// In the order of the first text, then keys that only the other text has.
std::vector<KeyDifference> differences(const std::string& toml, const std::string& other);

// Names of the presets, sorted. Shipped ones are launch/presets/NAME.toml, built into the program.
std::vector<std::string> preset_names(const Registry& registry = {});

// Each key with its name and default, and its meaning and allowed values indented below. For --help.
std::string describe_keys(const Registry& registry = {});

// The keys as a page in Markdown, with a table for each section: launch/configuration.md.
std::string keys_as_markdown(const Registry& registry = {});

}  // namespace lockstep
