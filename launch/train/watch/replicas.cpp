// SPDX-License-Identifier: Apache-2.0
#include "launch/train/watch/replicas.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/ranges.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/text/text.h"

namespace lockstep {

std::string describe_data(const Dataset& train, const Dataset& test) {
  return fmt::format("{} (hashes {:016x}, {:016x})", counted_images(train, test), train.fingerprint(),
                     test.fingerprint());
}

bool is_described_by(const std::string& text, const Dataset& train) {
  return text.find(fmt::format("(hashes {:016x}, ", train.fingerprint())) != std::string::npos;
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

std::optional<Disagreement> find_disagreement(Communicator& host, const std::string& mine) {
  const std::vector<std::string> texts = gather_texts(host, mine);
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < texts.size(); ++rank)
    ranks_of[texts[rank]].push_back(static_cast<int>(rank));
  if (ranks_of.size() == 1) return std::nullopt;
  std::vector<std::vector<int>> groups;
  for (const auto& [text, ranks] : ranks_of) {
    groups.push_back(ranks);
    if (2 * ranks.size() <= texts.size()) continue;
    const std::vector<int> differ = ranks_without(text, texts);
    return Disagreement{
        .text = fmt::format("{} {} other parameters than the other {}", named_ranks(differ),
                            differ.size() == 1 ? "has" : "have", counted(ranks.size(), "rank")),
        .suspects = named_ranks(differ)};
  }
  std::ranges::sort(groups);
  std::vector<std::string> names;
  for (const std::vector<int>& ranks : groups) names.push_back(named_ranks(ranks));
  return Disagreement{.text = fmt::format("the ranks have {} different sets of parameters ({})", names.size(),
                                          fmt::join(names, "; ")),
                      .suspects = "all ranks"};
}

void require_same_state(Communicator& host, const std::string& digest) {
  const std::optional<Disagreement> found = find_disagreement(host, digest);
  if (!found) return;
  throw_agreed(
      Error(exit_code::failed,
            fmt::format("at the end of training, {}: check the memory and the device of {}; exported "
                        "files hold the parameters of rank 0",
                        found->text, found->suspects)));
}

}  // namespace lockstep
