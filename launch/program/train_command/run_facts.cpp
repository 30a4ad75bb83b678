// SPDX-License-Identifier: Apache-2.0
#include "launch/program/train_command/run_facts.h"

#include <ctime>

#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include "core/device.h"
#include "core/system/processor_name.h"
#include "core/text/json_text.h"
#include "kernels/library_versions.h"
#include "launch/observe/account/account_json.h"
#include "launch/program/devices/cores.h"
#include "launch/program/mpirun.h"
#include "launch/program/setup/rank_memory.h"
#include "launch/program/version.h"
#include "models/work.h"

namespace lockstep {
namespace {

// Planned bytes of a rank, on the device and the host; see MemoryPart.
nlohmann::ordered_json planned_bytes(TrainingSetup& training, const Communicator& communicator) {
  nlohmann::ordered_json planned;
  const bool on_gpu = !is_host_memory(training.network().device());
  for (const MemoryPart& part : memory_parts(training, communicator))
    planned[on_gpu && !part.on_host ? "device" : "host"][part.name] = part.bytes;
  return planned;
}

}  // namespace

std::string run_facts(const World& world, TrainingSetup& training, const Communicator& communicator) {
  const std::time_t now = std::time(nullptr);
  std::int64_t parameters = 0;
  for (const Parameter& parameter : training.network().parameters())
    parameters += parameter.layout.shape().elements();
  nlohmann::ordered_json libraries{{"mpi", mpi_version()}};
  if (training.network().device().kind == DeviceKind::cuda) {
    libraries["cuda"] = cuda_library_versions();
    libraries["nccl"] = nccl_version();
  }
  nlohmann::ordered_json facts{
      {"lockstep", kVersion},
      {"command", job_command()},
      {"started", fmt::format("{:%Y-%m-%dT%H:%M:%S%z}", fmt::localtime(now))},
      {"ranks", world.size()},
      {"nodes", world.nodes()},
      {"host", world.host()},
      {"processor", processor_name()},
      {"cores", machine_cores()},
      {"device", to_string(training.network().device())},
      {"threads", training.threads()},
      {"backend", training.network().backend().describe()},
      {"libraries", libraries},
      {"parameters", parameters},
      {"flops_per_sample", training_flops(training.graph()) / training.network().batch()},
      {"planned_bytes", planned_bytes(training, communicator)},
      {"global_batch", training.train_loader().global_batch()},
      {"dataset",
       {{"training", training.train_set().size()},
        {"test", training.test_set().size()},
        {"classes", training.train_set().classes()},
        {"class_names", training.train_set().class_names()}}}};
  if (const auto use = device_memory_use(training.network().device())) facts["device_memory"] = json_of(*use);
  return dumped(facts, 2) + '\n';
}

}  // namespace lockstep
