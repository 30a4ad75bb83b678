// SPDX-License-Identifier: Apache-2.0
#include "launch/program/tune/dimensions.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "comm/exchanges/exchanges.h"
#include "launch/program/config/config_keys.h"

namespace lockstep {
namespace {

constexpr const char* kBucketKey = "comm.bucket_mib";
constexpr double kMiddles[] = {4, 8, 2, 1, 25, 64};  // MiB, the likeliest first
constexpr std::pair<double, double> kEnds[] = {{1, 0.25}, {0.25, 0.25}, {1, 1}, {0.25, 1}};
constexpr int kCtas[] = {0, 2, 4, 8, 16};
constexpr int kLeastCtas[] = {0, 16, 32};
constexpr int kClusters[] = {-1, 0, 2, 4};

// Collects the stages. Each tries the values of one key on top of the best settings so far.
class Dimensions {
 public:
  Dimensions(const Config& config, const Registry& registry, const TuneSituation& situation)
      : config_(config), situation_(situation), keys_(detail::keys_of(registry)) {}

  std::vector<TuneStage> stages() &&;

 private:
  void add_buckets();
  void add_threads();
  void add_communication();
  void add_device();
  // Adds no stage where the key does not exist, or has no value but the configured one.
  void add(const std::string& key, std::vector<std::string> values, double weight = 1);
  void add_numbers(const std::string& key, std::span<const int> numbers);
  // All words of the key but one.
  void add_words(const std::string& key, std::string_view without = {});
  const detail::Key* find(const std::string& name) const {
    const auto found = std::ranges::find(keys_, name, &detail::Key::name);
    return found == keys_.end() ? nullptr : &*found;
  }
  std::string configured(const detail::Key& key) const {
    Config values = config_;
    return detail::value_text(key.member(values));
  }

  const Config& config_;
  const TuneSituation& situation_;
  std::vector<detail::Key> keys_;
  std::vector<TuneStage> stages_;
};

// Settings of the capacities whose buckets differ from the best, the configured and each other's.
std::vector<TuneSettings> different(const Config& config, const TuneSituation& situation,
                                    const TuneSettings& best,
                                    const std::vector<std::array<double, 3>>& capacities) {
  std::set<std::string> known = {situation.buckets(bucket_mib_of(config, best)),
                                 situation.buckets(config.gradients.bucket_mib)};
  std::vector<TuneSettings> field;
  for (std::array<double, 3> mib : capacities) {
    if (!known.insert(situation.buckets(mib)).second) continue;
    TuneSettings settings = best;
    settings[kBucketKey] = detail::value_text(&mib);
    field.push_back(settings);
  }
  return field;
}

void Dimensions::add_buckets() {
  const auto with_middles = [config = config_, situation = situation_](const TuneSettings& best) {
    std::vector<std::array<double, 3>> capacities;
    for (const double middle : kMiddles) {
      const std::array<double, 3> mib = bucket_mib_of(config, best);
      capacities.push_back({mib[0], middle, mib[2]});
    }
    return different(config, situation, best, capacities);
  };
  const auto with_ends = [config = config_, situation = situation_](const TuneSettings& best) {
    std::vector<std::array<double, 3>> capacities;
    for (const auto& [first, last] : kEnds)
      capacities.push_back({first, bucket_mib_of(config, best)[1], last});
    return different(config, situation, best, capacities);
  };
  stages_.push_back({.name = kBucketSizeStage, .weight = 3, .field = with_middles});
  stages_.push_back({.name = "first and last bucket", .weight = 1.5, .field = with_ends});
}

// Tries all cores of a rank, one fewer, which leaves a core for communication, three quarters and half. Not
// on a GPU, and not with train.reproducible, where the number of threads changes the result.
void Dimensions::add_threads() {
  if (config_.reproducible || situation_.gpu) return;
  std::vector<std::string> values;
  for (const int count :
       {situation_.cores - 1, situation_.cores, situation_.cores * 3 / 4, situation_.cores / 2})
    if (count >= 1 && count != situation_.threads) values.push_back(std::to_string(count));
  add("train.threads", values, 2);
}

void Dimensions::add_communication() {
  add("comm.overlap", {"true", "false"});
  if (situation_.nodes == 1) return;
  if (situation_.allow_inexact) add_words("comm.codec", kAutoCodec.name);
  // MPI sums in another order, which gives other bits. GPUs leave the sums to NCCL.
  if (!situation_.gpu) add_words("comm.between_nodes", situation_.allow_inexact ? "" : "mpi");
}

void Dimensions::add_device() {
  if (situation_.ranks > 1) {
    add_words("comm.gradient_memory");
    add_numbers("comm.max_ctas", kCtas);
    add_numbers("comm.nvls_ctas", kCtas);
    // NCCL loads the tuner for a process's first communicator only.
    if (config_.device_communicator.ctas_beside_compute > 0) add_numbers("comm.ctas_beside_compute", kCtas);
    add_numbers("comm.min_ctas", kLeastCtas);
    add_numbers("comm.cga_cluster_size", kClusters);
    // Only gathering and scattering collectives have policies.
    if (config_.gradients.exchange == ExchangeForm::sharded) add_words("comm.cta_policy");
  }
  add("train.cuda_graph", {"true", "false"});
}

void Dimensions::add(const std::string& name, std::vector<std::string> values, double weight) {
  const detail::Key* key = find(name);
  if (key == nullptr) return;
  std::set<std::string> known = {configured(*key)};
  std::erase_if(values, [&](const std::string& value) { return !known.insert(value).second; });
  if (values.empty()) return;
  const auto field = [name, values](const TuneSettings& best) {
    std::vector<TuneSettings> settings;
    for (const std::string& value : values) {
      settings.push_back(best);
      settings.back()[name] = value;
    }
    return settings;
  };
  stages_.push_back({.name = name, .weight = weight, .field = field});
}

void Dimensions::add_numbers(const std::string& name, std::span<const int> numbers) {
  std::vector<std::string> values;
  for (const int each : numbers) values.push_back(std::to_string(each));
  add(name, values, 2);
}

void Dimensions::add_words(const std::string& name, std::string_view without) {
  const detail::Key* key = find(name);
  if (key == nullptr) return;
  std::vector<std::string> values;
  for (const std::string& word : key->words)
    if (word != without) values.push_back(detail::quoted(word));
  add(name, values, 2);
}

std::vector<TuneStage> Dimensions::stages() && {
  if (situation_.ranks > 1) add_buckets();
  add_threads();
  if (situation_.ranks > 1) add_communication();
  if (situation_.gpu) add_device();
  return std::move(stages_);
}

}  // namespace

std::array<double, 3> bucket_mib_of(const Config& config, const TuneSettings& settings) {
  const auto given = settings.find(kBucketKey);
  std::array<double, 3> mib = config.gradients.bucket_mib;
  if (given != settings.end())
    std::sscanf(given->second.c_str(), "[%lf, %lf, %lf]", &mib[0], &mib[1], &mib[2]);
  return mib;
}

std::vector<TuneStage> tune_stages(const Config& config, const Registry& registry,
                                   const TuneSituation& situation) {
  return Dimensions(config, registry, situation).stages();
}

}  // namespace lockstep
