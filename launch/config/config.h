// SPDX-License-Identifier: Apache-2.0
//
// Config: everything a run is told, read from TOML (a shipped preset or a file) and `--set
// section.key=value`. It holds the options of each part of the engine as that part takes them. One table of
// keys (config_keys.cpp) says what a person calls their members, and drives parsing, checking, printing,
// suggestions and the pages for people. Every rank reads its own; ranks compare texts before step 1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/buckets.h"
#include "comm/communicator.h"
#include "comm/world.h"
#include "data/batch_loader.h"
#include "data/preloaded.h"
#include "data/verify.h"
#include "launch/best_evaluation.h"
#include "launch/checkpoint/settings.h"
#include "launch/config/export_precision.h"
#include "launch/devices/device_choice.h"
#include "launch/devices/kernel_cache.h"
#include "launch/profile/schedule.h"
#include "launch/registry.h"
#include "launch/trainer.h"
#include "models/network.h"
#include "models/optimizer.h"
#include "models/schedule.h"

namespace lockstep {

// Members that no key names are the run's to fill in: see engine_options.h.
struct Config {
  NetworkChoice model;
  DatasetOptions dataset;
  VerifyOptions verify;
  LoaderOptions loader;
  LoaderMode loader_mode = LoaderMode::automatic;
  AugmentOn augment_on = AugmentOn::automatic;
  bool augments_on_host() const {
    return augment_on == AugmentOn::host && network.augmentation.changes_bytes();
  }
  NetworkOptions network;
  LossScaleOptions loss_scale = {.initial = 65536, .rule = {.interval = 2000}};  // in fp16
  TrainerOptions trainer;
  std::int64_t threads = 0;  // compute threads per rank; 0: cores / local ranks, or one fewer
  bool reproducible = false;
  OptimizerSettings optimizer;
  ScheduleSettings schedule;  // load_config chooses rate and warm-up where they are left out
  GradientSettings gradients;
  DeviceCommunicatorOptions device_communicator;
  CallCheck check = CallCheck::plan;
  AllReduceWay between_nodes = AllReduceWay::automatic;
  std::int64_t communication_niceness = 0;  // of the communication thread; 0: the process's
  double timeout_seconds = 0;               // of ranks that wait for others; 0: by the steps
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
  double monitor_seconds = 1;       // from one sample of a DeviceMonitor to the next; 0: none
  double price_per_kwh = 0;         // of energy, in whatever currency; 0: nobody said
  std::int64_t check_every = 1000;  // steps from one DesyncCheck to the next; 0: none
  // The same; 0 where ranks differ by intention.
  std::int64_t compared_every() const { return trainer.average_every > 1 ? 0 : check_every; }
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

// Throws ConfigError where an override is wrong whatever else is given: an unknown key, or a value that the
// key does not allow.
void check_override(const std::string& override_text, const Registry& registry = {});

// Of overrides alone: keys that none of them names have their defaults. Throws
// ConfigError.
Config config_of(std::span<const std::string> overrides, const Registry& registry = {});

// TOML of every key, in the table's order; load_config of it gives the same Config, but for what is secret
// (kRedacted), and the same text.
std::string to_toml(const Config& config, const Registry& registry = {});

// "section.key" of the first line in which two to_toml texts differ, with both values:
// "train.batch: 32 against 64"; empty when equal.
std::string first_difference(const std::string& toml, const std::string& other);

// A key in which two to_toml texts differ; a value is empty where the text does not have the key.
struct KeyDifference {
  std::string key, value, other;
};
// In the order of the first text, then what only the other has.
std::vector<KeyDifference> differences(const std::string& toml, const std::string& other);

// Names of the presets, sorted; those that are shipped are launch/presets/NAME.toml, built into the program.
std::vector<std::string> preset_names(const Registry& registry = {});

// For each key its name and default, and indented below it what it is and what is allowed. For --help.
std::string describe_keys(const Registry& registry = {});

// The same as a page in Markdown, a table for each section: launch/configuration.md.
std::string keys_as_markdown(const Registry& registry = {});

}  // namespace lockstep
