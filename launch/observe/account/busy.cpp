// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/account/busy.h"

#include <numeric>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/system/processors.h"
#include "launch/observe/profile/layer_profile.h"
#include "models/work.h"

namespace lockstep {
namespace {

// The number of floats in a vector register, or of channels in a tile of tensor cores.
int vector_channels(Device device) {
  constexpr int kTile = 8;
  return is_host_memory(device) ? register_floats(instruction_set()) : kTile;
}

}  // namespace

double busy_share(const StepAccount& account, double without_core_seconds) {
  const double computing =
      account[Phase::forward] + account[Phase::backward] + account[Phase::optimizer] - without_core_seconds;
  const double total = account.total();
  return total > 0 ? std::clamp(computing / total, 0.0, 1.0) : 0;
}

std::optional<Attainable> measure_attainable(Communicator& host, const Graph& graph, Network& network) {
  const double flops = executed_flops(graph, network.nodes()) / static_cast<double>(network.batch());
  Backend& backend = network.backend();
  double mine = 0;
  measure_together(host, [&] {
    try {
      mine = backend.measure_gigaflops(storage_type(network.precision()),
                                       network.precision() == Precision::tf32);
    } catch (const Error& error) {
      log::info("cannot measure the peak rate of {}, so peak is not reported: {}",
                to_string(network.device()), error.what());
    }
  });
  const std::vector<double> rates = gather_values(host, mine);
  if (flops <= 0 || std::ranges::find(rates, 0.0) != rates.end()) return std::nullopt;
  return Attainable{.samples_per_second = std::accumulate(rates.begin(), rates.end(), 0.0) * 1e9 / flops,
                    .gigaflops = mine};
}

std::function<std::optional<ComputeRoof>()> roof_of(const Graph& graph, Network& network, double gigaflops) {
  return [&graph, &network, gigaflops, roof = std::optional<ComputeRoof>(), asked = false]() mutable {
    if (std::exchange(asked, true)) return roof;
    try {
      const DeviceRates rates{.gigaflops = gigaflops,
                              .gigabytes_per_second = network.backend().measure_gigabytes_per_second()};
      roof =
          compute_roof(graph, network.precision(), rates, vector_channels(network.device()), network.nodes());
    } catch (const Error& error) {
      log::info("cannot measure the memory bandwidth of {}, so run.peak_below has no effect: {}",
                to_string(network.device()), error.what());
    }
    return roof;
  };
}

}  // namespace lockstep
