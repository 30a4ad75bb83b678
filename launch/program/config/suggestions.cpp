// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/suggestions.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace lockstep {
namespace {

using detail::Key;

struct Synonym {
  std::string_view other;
  const char* ours;
};

// Names in PyTorch, timm, Hugging Face and scripts that use them.
constexpr Synonym kKeys[] = {{"lr", "optimizer.learning_rate"},
                             {"rate", "optimizer.learning_rate"},
                             {"wd", "optimizer.weight_decay"},
                             {"eps", "optimizer.epsilon"},
                             {"clip_grad", "optimizer.clip_norm"},
                             {"clip", "optimizer.clip_norm"},
                             {"grad_clip", "optimizer.clip_norm"},
                             {"max_grad_norm", "optimizer.clip_norm"},
                             {"gradient_clip_val", "optimizer.clip_norm"},
                             {"optim", "optimizer.name"},
                             {"optimizer", "optimizer.name"},
                             {"scheduler", "schedule.name"},
                             {"warmup", "schedule.warmup_epochs"},
                             {"bs", "train.batch"},
                             {"batch_size", "train.batch"},
                             {"micro_batch", "train.batch"},
                             {"grad_accum", "train.accumulation"},
                             {"gradient_accumulation", "train.accumulation"},
                             {"gradient_accumulation_steps", "train.accumulation"},
                             {"max_steps", "train.steps"},
                             {"num_epochs", "train.epochs"},
                             {"dtype", "train.precision"},
                             {"amp", "train.precision"},
                             {"ema", "train.ema_decay"},
                             {"model_ema", "train.ema_decay"},
                             {"model_ema_decay", "train.ema_decay"},
                             {"patience", "run.stop_after_epochs"},
                             {"early_stopping", "run.stop_after_epochs"},
                             {"early_stopping_patience", "run.stop_after_epochs"},
                             {"min_delta", "run.stop_min_delta"},
                             {"save_best", "run.keep_best"},
                             {"eval_every", "run.evaluate_every"},
                             {"eval_interval", "run.evaluate_every"},
                             {"smoothing", "train.label_smoothing"},
                             {"checkpointing", "train.recompute"},
                             {"num_threads", "train.threads"},
                             {"workers", "data.loader_threads"},
                             {"num_workers", "data.loader_threads"},
                             {"dataset", "data.path"},
                             {"data", "data.path"},
                             {"std", "data.deviation"},
                             {"flip", "data.horizontal_flip"},
                             {"hflip", "data.horizontal_flip"},
                             {"padding", "data.crop_padding"},
                             {"arch", "model.name"},
                             {"model", "model.name"},
                             {"net", "model.name"},
                             {"network", "model.name"},
                             {"drop", "model.dropout"},
                             {"out", "run.dir"},
                             {"output", "run.dir"},
                             {"output_dir", "run.dir"}};

constexpr Synonym kWords[] = {{"gpu", "cuda"},
                              {"nvidia", "cuda"},
                              {"host", "cpu"},
                              {"float32", "fp32"},
                              {"float", "fp32"},
                              {"single", "fp32"},
                              {"float16", "fp16"},
                              {"half", "fp16"},
                              {"mixed", "fp16"},
                              {"bfloat16", "bf16"},
                              {"adam", "adamw"},
                              {"imagefolder", "image_folder"},
                              {"folder", "image_folder"},
                              {"jpeg", "image_folder"},
                              {"jpg", "image_folder"},
                              {"png", "image_folder"},
                              {"jpeg_folder", "image_folder"},
                              {"tar", "webdataset"},
                              {"wds", "webdataset"},
                              {"tfrecords", "tfrecord"},
                              {"tfds", "tfrecord"},
                              {"lsr", "records"},
                              {"record", "records"},
                              {"cifar10", "cifar_binary"},
                              {"cifar100", "cifar_binary"},
                              {"cifar", "cifar_binary"},
                              {"random", "synthetic"},
                              {"fake", "synthetic"},
                              {"mnist", "idx"},
                              {"fashion_mnist", "idx"},
                              {"multistep", "step"},
                              {"resnet", "resnet18"},
                              {"mobilenet", "mobilenet_v2"},
                              {"vgg", "vgg11_bn"}};

std::string ours(std::span<const Synonym> synonyms, const std::string& other) {
  const auto found = std::ranges::find(synonyms, std::string_view(other), &Synonym::other);
  return found == synonyms.end() ? "" : found->ours;
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = std::exchange(row[j], std::min({replaced, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(const std::string& word, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  std::size_t least = word.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      best = &candidate;
    }
  }
  return best ? *best : std::string();
}

std::string known_key(const std::string& name, std::span<const Key> keys) {
  if (const auto key = std::ranges::find(keys, name, &Key::name); key != keys.end()) return key->name;
  const std::string word = name.substr(name.find('.') + 1);
  if (const auto key = std::ranges::find(keys, word, &Key::short_name); key != keys.end()) return key->name;
  return keys.empty() ? "" : ours(kKeys, word);
}

std::string suggested_key(const std::string& name, std::span<const Key> keys) {
  if (const std::string known = known_key(name, keys); !known.empty()) return known;
  const std::size_t dot = name.find('.');
  const std::string section = name.substr(0, dot), word = name.substr(dot + 1);
  std::vector<std::string> here, everywhere;
  for (const Key& key : keys) {
    everywhere.push_back(key.short_name());
    if (dot != std::string::npos && key.section() == section) here.push_back(key.short_name());
  }
  if (const std::string near = nearest(word, here); !near.empty()) return section + '.' + near;
  const std::string near = nearest(word, everywhere);
  return near.empty() ? near : known_key(near, keys);
}

std::string suggested_word(const std::string& given, std::span<const std::string> words) {
  const std::string known = ours(kWords, given);
  return std::ranges::count(words, known) > 0 ? known : nearest(given, words);
}

std::string did_you_mean(const std::string& word) {
  return word.empty() ? "" : fmt::format("; did you mean {}?", word);
}

}  // namespace lockstep
