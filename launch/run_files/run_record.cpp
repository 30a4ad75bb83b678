// SPDX-License-Identifier: Apache-2.0
#include "launch/run_files/run_record.h"

#include <chrono>
#include <thread>

#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include "core/atomic_file.h"
#include "core/device.h"
#include "core/error.h"
#include "core/log.h"
#include "core/processor_name.h"
#include "kernels/library_versions.h"
#include "launch/account/account_json.h"
#include "launch/checkpoint/plain_file.h"
#include "launch/rank_memory.h"
#include "launch/run_files/own_command.h"
#include "launch/run_files/run_folder.h"
#include "launch/version.h"

namespace lockstep {
namespace {

// Returns an empty text where the file cannot be read.
std::string text_in(const std::filesystem::path& path) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
  try {
    return read_plain_file(path, kMostBytes);
  } catch (const Error&) {
    return {};  // absent, or not a regular file
  }
}

// Removes facts that differ between starts of the same run.
std::string lasting_facts(const std::string& text) {
  nlohmann::json facts = nlohmann::json::parse(text, nullptr, false);
  if (!facts.is_object()) return text;
  facts.erase("started");
  facts.erase("command");
  facts.erase("device_memory");
  return facts.dump();
}

void replace(const std::filesystem::path& path, const std::string& text, bool same) {
  std::error_code error;
  if (!same && std::filesystem::exists(std::filesystem::symlink_status(path, error)))
    std::filesystem::rename(path, name_of_earlier(path), error);
  write_atomically(path, text, Links::replace);
}

// Planned bytes of a rank, on the device and the host; see MemoryPart.
nlohmann::ordered_json planned_bytes(Training& training, const Communicator& communicator) {
  nlohmann::ordered_json planned;
  const bool on_gpu = !is_host_memory(training.network().device());
  for (const MemoryPart& part : memory_parts(training, communicator))
    planned[on_gpu && !part.on_host ? "device" : "host"][part.name] = part.bytes;
  return planned;
}

}  // namespace

std::string run_facts(const World& world, Training& training, const Communicator& communicator) {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::int64_t parameters = 0;
  for (const Parameter& parameter : training.network().parameters())
    parameters += parameter.layout.shape().elements();
  nlohmann::ordered_json libraries{{"mpi", mpi_version()}};
  if (training.network().device().kind == DeviceKind::cuda) {
    libraries["cuda"] = cuda_library_versions();
    libraries["nccl"] = nccl_version();
  }
  nlohmann::ordered_json facts{{"lockstep", kVersion},
                               {"command", shell_command(own_arguments())},
                               {"started", fmt::format("{:%Y-%m-%dT%H:%M:%S%z}", fmt::localtime(now))},
                               {"ranks", world.size()},
                               {"nodes", world.nodes()},
                               {"host", world.host()},
                               {"processor", processor_name()},
                               {"cores", std::thread::hardware_concurrency()},
                               {"device", to_string(training.network().device())},
                               {"threads", training.threads()},
                               {"backend", training.network().backend().describe()},
                               {"libraries", libraries},
                               {"parameters", parameters},
                               {"planned_bytes", planned_bytes(training, communicator)},
                               {"global_batch", training.train_loader().global_batch()},
                               {"dataset",
                                {{"training", training.train_set().size()},
                                 {"test", training.test_set().size()},
                                 {"classes", training.train_set().classes()},
                                 {"class_names", training.train_set().class_names()}}}};
  if (const auto use = device_memory_use(training.network().device())) facts["device_memory"] = json_of(*use);
  return facts.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

void write_run_record(const Config& config, const std::string& config_text, const std::string& facts) {
  const std::filesystem::path folder = config.run_dir;
  try {
    const std::filesystem::path toml = folder / "config.toml", json = folder / "run.json";
    replace(toml, config_text, text_in(toml) == config_text);
    replace(json, facts, lasting_facts(text_in(json)) == lasting_facts(facts));
  } catch (const IoError& error) {
    log::warning("{}; training goes on without", error.what());
  }
}

}  // namespace lockstep
