// SPDX-License-Identifier: Apache-2.0
#include "launch/train/checkpoint/store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>

#include <sys/stat.h>

#include "core/error.h"
#include "core/files/atomic_file.h"
#include "core/log.h"
#include "core/text/text.h"
#include "launch/train/checkpoint/plain_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-", kPartial = ".partial";

std::string name_of_checkpoint(std::int64_t steps, std::int64_t number) {
  return fmt::format("{}{:09}{}", kStepPrefix, steps, number == 1 ? "" : fmt::format(".{}", number));
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  const auto number = number_from<std::int64_t>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

std::optional<CheckpointStore::Entry> entry_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(kStepPrefix.size());
  const std::size_t dot = rest.find('.');
  const auto steps = whole_number(rest.substr(0, dot));
  const auto number = dot == std::string_view::npos ? 1 : whole_number(rest.substr(dot + 1));
  if (!steps || !number || name != name_of_checkpoint(*steps, *number)) return std::nullopt;
  return CheckpointStore::Entry{.folder = path, .steps = *steps, .number = *number};
}

// Empty if `folder` does not exist or is a file. Throws IoError if it cannot be listed.
std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    std::error_code unknown;
    if (fs::is_directory(each->symlink_status(unknown))) found.push_back(each->path());
  }
  if (!error) return found;
  std::error_code unknown;
  const fs::file_type type = fs::symlink_status(folder, unknown).type();
  if (type == fs::file_type::not_found || type == fs::file_type::regular) return {};
  throw IoError(fmt::format(
      "cannot list the checkpoints in {}: {}; check its disk, its permissions and where it links to, or set "
      "another run.dir",
      folder.string(), error.message()));
}

// Logs an IoError of work().
template <typename Work>
void try_to(const Work& work) {
  try {
    work();
  } catch (const IoError& error) {
    log::warning("{}", error.what());
  }
}

[[noreturn]] void failed_to(const std::string& what, const fs::path& path, int error) {
  throw IoError(fmt::format("cannot {} {}: {}", what, path.string(), std::strerror(error)));
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (rename(from.c_str(), to.c_str()) != 0) failed_to("rename", from.string() + " to " + to.string(), errno);
}

// True for a mount point and for a link to another disk: nothing in such a folder can be renamed out of it.
bool is_on_other_disk(const fs::path& folder) {
  struct stat own = {}, parent = {};
  return stat(folder.c_str(), &own) == 0 && stat(folder.parent_path().c_str(), &parent) == 0 &&
         own.st_dev != parent.st_dev;
}

// Creates no parents: if run.dir is gone, nothing may be written in its place. Returns whether `folder` is a
// folder now.
bool make_folder(const fs::path& folder) {
  if (mkdir(folder.c_str(), 0777) == 0) return true;
  const int error = errno;
  if (error == ENOENT) {
    throw IoError(
        fmt::format("cannot create {}: its parent folder does not exist; it was moved, removed or unmounted, "
                    "or ranks do not see the same run.dir",
                    folder.string()));
  }
  if (error != EEXIST) failed_to("create", folder, error);
  std::error_code unknown;
  return fs::is_directory(folder, unknown);
}

// Ranks that share a folder may remove it at once: a missing file is being removed by another rank.
std::error_code remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  return error == std::errc::no_such_file_or_directory ? std::error_code() : error;
}

// Renames it first, so that a checkpoint under its final name is complete or absent.
void remove_checkpoint(const fs::path& folder) {
  const fs::path renamed = folder.string() + std::string(kPartial);
  std::error_code error;
  fs::rename(folder, renamed, error);
  if (!error) fs::remove_all(renamed, error);
  if (error) log::warning("cannot remove {}: {}", folder.string(), error.message());
}

}  // namespace

Manifest whole_manifest(const fs::path& folder) {
  Manifest manifest = read_manifest(folder);
  for (const ShardFile& file : manifest.files) {
    if (const std::uint64_t bytes = plain_file_bytes(folder / file.name); bytes != file.bytes) {
      throw DataError(fmt::format("{}: has {} bytes, the manifest says {}", (folder / file.name).string(),
                                  bytes, file.bytes));
    }
  }
  return manifest;
}

std::vector<CheckpointStore::Entry> CheckpointStore::entries() const {
  std::vector<Entry> found;
  for (const fs::path& path : folders_in(folder_))
    if (const auto entry = entry_of(path)) found.push_back(*entry);
  std::ranges::sort(found, [](const Entry& a, const Entry& b) { return a.order() > b.order(); });
  return found;
}

void CheckpointStore::remove_partials() const {
  std::vector<fs::path> folders;
  try_to([&] { folders = folders_in(folder_); });
  for (const fs::path& path : folders) {
    const std::string name = path.filename().string();
    if (!name.starts_with(kStepPrefix) || !name.ends_with(kPartial)) continue;
    if (const std::error_code error = remove_folder(path))
      log::warning("cannot remove {}: {}", path.string(), error.message());
  }
}

fs::path CheckpointStore::partial(std::int64_t steps) const {
  return folder_ / (name_of_checkpoint(steps, 1) + std::string(kPartial));
}

void CheckpointStore::make_partial(std::int64_t steps) const {
  if (!make_folder(folder_)) failed_to("create", folder_, ENOTDIR);
  std::error_code unknown;  // a symbolic link would lead elsewhere
  if (!make_folder(partial(steps)) || fs::is_symlink(partial(steps), unknown))
    throw IoError(
        fmt::format("cannot create {}: a file or a symbolic link has this name", partial(steps).string()));
}

fs::path CheckpointStore::commit(const Manifest& manifest) const {
  const fs::path from = partial(manifest.steps);
  write_atomically(from / Manifest::kFileName, to_text(manifest), Links::replace);
  try {
    whole_manifest(from);
  } catch (const DataError& error) {
    throw IoError(
        fmt::format("{}; check that all ranks see the same run.dir and that no other program writes there",
                    error.what()));
  }
  sync_folder(from);
  std::int64_t number = 1;
  std::error_code unknown;
  while (fs::exists(fs::symlink_status(folder_ / name_of_checkpoint(manifest.steps, number), unknown)))
    ++number;
  const fs::path to = folder_ / name_of_checkpoint(manifest.steps, number);
  rename_folder(from, to);
  sync_folder(folder_);
  sync_folder(folder_.parent_path());  // folder_ may be new
  return to;
}

void CheckpointStore::remove_partial(std::int64_t steps) const {
  std::error_code error;
  fs::remove_all(partial(steps), error);
}

void CheckpointStore::prune(std::int64_t keep) const {
  struct Whole {
    fs::path folder;
    std::optional<double> accuracy;
  };
  std::vector<Entry> all;
  try_to([&] { all = entries(); });
  std::vector<Whole> whole;
  for (const Entry& entry : all) {
    try {
      whole.push_back({entry.folder, whole_manifest(entry.folder).test_accuracy});
    } catch (const Error& error) {
      log::debug("{} is kept for inspection: {}", entry.folder.string(), error.what());
    }
  }
  const auto accuracy = [](const Whole& each) { return each.accuracy.value_or(-1); };
  const auto best = std::ranges::max_element(whole, {}, accuracy);  // the newest of equally good ones
  for (auto each = whole.begin(); each != whole.end(); ++each) {
    if (each - whole.begin() < keep || (each == best && best->accuracy)) continue;
    remove_checkpoint(each->folder);
  }
}

fs::path CheckpointStore::set_aside(const fs::path& but_past_of) const {
  remove_partials();
  std::vector<Entry> moving = entries();
  std::optional<Entry> last;
  if (!but_past_of.empty()) {
    last = entry_of(but_past_of);
    if (!last)  // renamed: its manifest has the step, and no checkpoint of this step comes after it
      last = Entry{.folder = but_past_of,
                   .steps = read_manifest(but_past_of).steps,
                   .number = std::numeric_limits<std::int64_t>::max()};
  }
  std::erase_if(moving, [&](const Entry& entry) { return last && entry.order() <= last->order(); });
  if (moving.empty()) return {};
  std::error_code error;
  int number = 1;
  const bool inside = is_on_other_disk(folder_);
  const fs::path base = inside ? folder_ / "earlier" : folder_;
  const auto aside = [&] { return fs::path(fmt::format("{}.{}", base.string(), number)); };
  while (fs::exists(fs::symlink_status(aside(), error))) ++number;
  if (!last && !inside) {
    rename_folder(folder_, aside());
    return aside();
  }
  if (mkdir(aside().c_str(), 0777) != 0) failed_to("create", aside(), errno);
  for (const Entry& entry : moving) rename_folder(entry.folder, aside() / entry.folder.filename());
  return aside();
}

}  // namespace lockstep
