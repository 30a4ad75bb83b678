// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/saved_training.h"

#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "comm/agreement.h"
#include "core/error.h"
#include "core/log.h"
#include "core/text/text.h"
#include "launch/train/checkpoint/store.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The reason why the checkpoint cannot be used, of the lowest rank that has one; nothing if it was read.
std::optional<Error> read_saved(Communicator& host, SavedTraining& saved) {
  std::string manifest_text;
  bool lacks_memory = false;
  try {
    run_agreed(host, [&] {
      if (host.rank() == 0) manifest_text = to_text(whole_manifest(saved.folder));
    });
    saved.manifest = manifest_from(broadcast_text(host, manifest_text, 0), saved.folder);
    run_agreed(host, [&] {
      try {
        RankState mine = state_for(saved.folder, saved.manifest, host.rank(), host.size());
        saved.state = std::move(mine.state);
        saved.exchange = std::move(mine.exchange);
      } catch (const std::bad_alloc&) {
        lacks_memory = true;
        throw;
      }
    });
  } catch (const Error& error) {
    if (!error.agreed() || (error.exit_code() != exit_code::data && error.exit_code() != exit_code::io))
      throw;
    if (first_rank_where(host, lacks_memory) >= 0) throw;  // an older checkpoint needs as much
    return error;
  }
  return std::nullopt;
}

}  // namespace

std::int64_t SavedTraining::number(const std::string& name) const {
  for (const StateCopy::Value& value : state.values)
    if (value.name == name && std::holds_alternative<std::int64_t>(value.value))
      return std::get<std::int64_t>(value.value);
  return 0;
}

CheckpointCandidates checkpoints_in(const fs::path& run_dir) {
  CheckpointCandidates found;
  for (const CheckpointStore::Entry& entry : CheckpointStore(run_dir).entries())
    found.folders.push_back(entry.folder);
  return found;
}

CheckpointCandidates checkpoints_of(const fs::path& given, const std::string& asked) {
  // "." and a name that ends with a slash have the parent and the file name of another folder.
  fs::path folder = fs::absolute(given).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder / Manifest::kFileName, error)))
    return {.folders = {folder}, .named = true};
  CheckpointCandidates found = checkpoints_in(folder);
  if (found.folders.empty() && folder.filename().string().starts_with("step-"))
    throw DataError(
        fmt::format("{}: is not a complete checkpoint: it has no {}", asked, Manifest::kFileName));
  if (found.folders.empty())
    throw DataError(
        fmt::format("{}: has no checkpoint; give the folder of a run or of one checkpoint (step-...), or set "
                    "run.checkpoint_every or run.checkpoint_minutes in the training to save some",
                    asked));
  return found;
}

SavedTraining first_intact(Communicator& host, const CheckpointCandidates& candidates) {
  const std::size_t count = candidates.folders.size();
  for (std::size_t i = 0; i < count; ++i) {
    SavedTraining saved{.folder = candidates.folders[i], .manifest = {}, .state = {}};
    const std::optional<Error> problem = read_saved(host, saved);
    if (!problem) return saved;
    if (candidates.named) throw_agreed(*problem);
    if (i + 1 == count) {
      throw_agreed(DataError(fmt::format("none of the {} can be read; the oldest: {}",
                                         counted(count, "checkpoint"), problem->what())));
    }
    log::shared_warning("{}; the next older checkpoint is tried", problem->what());
  }
  throw_agreed(DataError("no checkpoint was found"));
}

CheckpointCandidates candidates_of_rank_0(Communicator& host, CheckpointCandidates mine) {
  CheckpointCandidates all{.folders = {},
                           .named = gather_values<std::int32_t>(host, mine.named).front() != 0};
  const auto count =
      gather_values<std::int64_t>(host, static_cast<std::int64_t>(mine.folders.size())).front();
  mine.folders.resize(static_cast<std::size_t>(count));
  for (const fs::path& folder : mine.folders)
    all.folders.emplace_back(broadcast_text(host, folder.string(), 0));
  return all;
}

SavedTraining newest_saved(Communicator& host, const std::filesystem::path& folder) {
  CheckpointCandidates mine;
  run_agreed(host, [&] {
    if (host.rank() == 0) mine = checkpoints_of(folder, folder.string());
  });
  return first_intact(host, candidates_of_rank_0(host, std::move(mine)));
}

void set_aside_others(Communicator& host, const std::filesystem::path& run_dir, const SavedTraining* saved) {
  run_agreed(host, [&] {
    if (host.rank() != 0) return;
    const fs::path kept = saved != nullptr && saved->in_run_dir ? saved->folder : fs::path();
    const fs::path aside = CheckpointStore(run_dir).set_aside(kept);
    if (aside.empty()) return;
    log::info("moved the checkpoints {} to {}",
              kept.empty() ? "of an earlier run" : "that are newer than the resumed one", aside.string());
  });
}

}  // namespace lockstep
