// SPDX-License-Identifier: Apache-2.0
#include "launch/program/config/suggestions.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/text/text.h"

namespace lockstep {
namespace {

using detail::Key;

struct Synonyms {
  const char* ours;
  std::string_view others;  // separated by blanks
};

// Names in PyTorch, timm, Hugging Face and scripts that use them.
constexpr Synonyms kKeys[] = {
    {"optimizer.learning_rate", "lr rate"},
    {"optimizer.weight_decay", "wd"},
    {"optimizer.epsilon", "eps"},
    {"optimizer.clip_norm", "clip_grad clip grad_clip max_grad_norm gradient_clip_val"},
    {"optimizer.name", "optim optimizer"},
    {"schedule.name", "scheduler"},
    {"schedule.warmup_epochs", "warmup"},
    {"train.batch", "bs batch_size micro_batch"},
    {"train.accumulation", "grad_accum gradient_accumulation gradient_accumulation_steps"},
    {"train.steps", "max_steps"},
    {"train.epochs", "num_epochs"},
    {"train.precision", "dtype amp"},
    {"train.ema_decay", "ema model_ema model_ema_decay"},
    {"run.stop_after_epochs", "patience early_stopping early_stopping_patience"},
    {"run.stop_min_delta", "min_delta"},
    {"run.keep_best", "save_best"},
    {"run.evaluate_every", "eval_every eval_interval"},
    {"train.label_smoothing", "smoothing"},
    {"train.recompute", "checkpointing"},
    {"train.threads", "num_threads"},
    {"data.loader_threads", "workers num_workers"},
    {"data.path", "dataset data"},
    {"data.deviation", "std"},
    {"data.horizontal_flip", "flip hflip"},
    {"data.crop_padding", "padding"},
    {"model.name", "arch model net network"},
    {"model.dropout", "drop"},
    {"run.dir", "out output output_dir"}};

constexpr Synonyms kWords[] = {{"cuda", "gpu nvidia"},
                               {"cpu", "host"},
                               {"fp32", "float32 float single"},
                               {"fp16", "float16 half mixed"},
                               {"bf16", "bfloat16"},
                               {"adamw", "adam"},
                               {"image_folder", "imagefolder folder jpeg jpg png jpeg_folder"},
                               {"webdataset", "tar wds"},
                               {"tfrecord", "tfrecords tfds"},
                               {"records", "lsr record"},
                               {"cifar_binary", "cifar10 cifar100 cifar"},
                               {"synthetic", "random fake"},
                               {"idx", "mnist fashion_mnist"},
                               {"step", "multistep"},
                               {"resnet18", "resnet"},
                               {"mobilenet_v2", "mobilenet"},
                               {"vgg11_bn", "vgg"}};

std::string ours(std::span<const Synonyms> synonyms, const std::string& other) {
  for (const Synonyms& each : synonyms)
    if (std::ranges::count(split_text(each.others, ' '), other) > 0) return each.ours;
  return {};
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

std::string key_named_by(const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  std::string key = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::ranges::replace(key, '-', '_');
  return key;
}

std::string shown_word(const std::string& word) {
  constexpr std::string_view kSet = "--set=";
  const std::size_t begin = word.starts_with(kSet) ? kSet.size() : 0;
  const std::size_t equals = word.find('=', begin);
  if (equals == std::string::npos || !detail::is_secret(suggested_key(key_named_by(word.substr(begin)))))
    return detail::without_secrets(word);
  return word.substr(0, equals + 1) + detail::shown_secret(word.substr(equals + 1));
}

std::string suggested_word(const std::string& given, std::span<const std::string> words) {
  const std::string known = ours(kWords, given);
  return std::ranges::count(words, known) > 0 ? known : nearest(given, words);
}

std::string did_you_mean(const std::string& word) {
  return word.empty() ? "" : fmt::format("; did you mean {}?", word);
}

}  // namespace lockstep
