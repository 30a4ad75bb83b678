// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/replicas.h"

#include "comm/agreement.h"
#include "core/error.h"
#include "core/text/text.h"

namespace lockstep {

std::string describe_data(const Dataset& train, const Dataset& test) {
  return fmt::format("{} (hashes {:016x}, {:016x})", counted_images(train, test), train.fingerprint(),
                     test.fingerprint());
}

void require_same_data(Communicator& host, const Dataset& train, const Dataset& test,
                       const std::string& path) {
  std::string mine;
  run_agreed(host, [&] { mine = describe_data(train, test); });
  const Difference found = find_difference(host, mine);
  if (found.ranks.empty()) return;
  throw_agreed(DataError(
      fmt::format("{}: the data of {} differ from rank 0's: rank {} has {}, rank 0 has {}; copy the data "
                  "again to the nodes of ranks that differ, or use storage that all nodes share",
                  path, named_ranks(found.ranks), found.ranks.front(), found.text, found.reference)));
}

void broadcast_state(Communicator& communicator, Network& network) {
  for (const std::span<float> state : {network.values(), network.statistics(), network.frozen()})
    if (!state.empty()) communicator.broadcast(state.data(), state.size(), DType::f32, 0);
  Stream stream(network.device(), StreamUse::compute);
  Event sent(network.device());
  communicator.stream().record(sent);
  stream.wait(sent);
  network.copy_weights(stream);
  network.copy_statistics(stream);
  stream.synchronize();
}

void require_same_state(Communicator& host, const std::string& digest) {
  const Difference found = find_difference(host, digest);
  if (found.ranks.empty()) return;
  throw_agreed(
      Error(exit_code::failed,
            fmt::format("{} ended with other parameters than rank 0: check the memory and the device of {}; "
                        "exported files hold the parameters of rank 0",
                        named_ranks(found.ranks), named_ranks(found.ranks))));
}

}  // namespace lockstep
