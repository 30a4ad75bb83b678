// SPDX-License-Identifier: Apache-2.0
#include "launch/observe/monitor/monitor_file.h"

#include <array>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/files/file_text.h"
#include "core/log.h"
#include "core/text/units.h"
#include "launch/observe/run_files/run_folder.h"

namespace lockstep {
namespace {

constexpr const char* kNotKnown = "[N/A]";

// nvidia-smi quotes nothing, so characters that would break a row become blanks.
std::string cell(std::string text) {
  for (char& c : text)
    if (c == ',' || c == '"' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text.empty() ? kNotKnown : text;
}

template <typename T>
std::string cell(const std::optional<T>& value, fmt::format_string<const T&> format) {
  return value ? fmt::format(format, *value) : kNotKnown;
}
std::string mebibytes(const std::optional<std::uint64_t>& bytes) {
  return bytes ? fmt::format("{} MiB", *bytes >> 20) : kNotKnown;
}
std::string mebibytes_per_second(const std::optional<double>& bytes) {
  return bytes ? fmt::format("{:.2f} MiB/s", *bytes / kMiB) : kNotKnown;
}

std::string local_time(std::chrono::system_clock::time_point time) {
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y/%m/%d %H:%M:%S}.{:03}", fmt::localtime(std::chrono::system_clock::to_time_t(time)),
                     milliseconds);
}

std::string reasons_text(const std::optional<std::uint64_t>& reasons) {
  if (!reasons) return kNotKnown;
  return *reasons == 0 ? "none" : fmt::format("{}", fmt::join(clock_reason_words(*reasons), " "));
}

struct MonitorColumn {
  std::string_view name;
  std::string (*value)(const MonitorRow& row);
};

#define COLUMN(name, ...)                                                  \
  MonitorColumn {                                                          \
    name, [](const MonitorRow& row) -> std::string { return __VA_ARGS__; } \
  }

const auto& monitor_columns() {
  static const std::array table = {
      COLUMN("timestamp", local_time(row.time)),
      COLUMN("name", cell(row.device.name)),
      COLUMN("pci.bus_id", cell(row.device.pci_bus_id)),
      COLUMN("driver_version", cell(row.device.driver_version)),
      COLUMN("pstate", cell(row.device.performance_state, "P{}")),
      COLUMN("pcie.link.gen.max", cell(row.device.pcie_generation_most, "{}")),
      COLUMN("pcie.link.gen.current", cell(row.device.pcie_generation, "{}")),
      COLUMN("temperature.gpu", cell(row.device.celsius, "{:.0f}")),
      COLUMN("utilization.gpu [%]", cell(row.device.utilization, "{:.0f} %")),
      COLUMN("utilization.memory [%]", cell(row.device.memory_utilization, "{:.0f} %")),
      COLUMN("memory.total [MiB]", mebibytes(row.device.memory_bytes)),
      COLUMN("memory.free [MiB]", mebibytes(row.device.memory_free_bytes)),
      COLUMN("memory.used [MiB]", mebibytes(row.device.memory_used_bytes)),
      // Lockstep's own columns.
      COLUMN("ranks", cell(row.ranks)),
      COLUMN("power.draw [W]", cell(row.device.watts, "{:.2f} W")),
      COLUMN("energy [J]", cell(row.device.joules, "{:.3f} J")),
      COLUMN("clocks.sm [MHz]", cell(row.device.sm_mhz, "{} MHz")),
      COLUMN("clocks.memory [MHz]", cell(row.device.memory_mhz, "{} MHz")),
      COLUMN("clocks.reasons", reasons_text(row.device.clock_reasons)),
      COLUMN("pcie.received [MiB/s]", mebibytes_per_second(row.device.pcie_received)),
      COLUMN("pcie.sent [MiB/s]", mebibytes_per_second(row.device.pcie_sent)),
      COLUMN("nvlink.received [MiB/s]", mebibytes_per_second(row.device.nvlink_received)),
      COLUMN("nvlink.sent [MiB/s]", mebibytes_per_second(row.device.nvlink_sent)),
      COLUMN("gpm.sm [%]", cell(row.device.sm_activity, "{:.1f} %")),
      COLUMN("gpm.tensor [%]", cell(row.device.tensor_activity, "{:.1f} %")),
      COLUMN("gpm.memory [%]", cell(row.device.memory_activity, "{:.1f} %")),
      COLUMN("host.processor [%]", cell(row.host.processor, "{:.1f} %")),
      COLUMN("host.job [%]", cell(row.host.job_processor, "{:.1f} %")),
      COLUMN("host.memory.used [MiB]", mebibytes(row.host.memory_used_bytes)),
      COLUMN("host.memory.total [MiB]", mebibytes(row.host.memory_bytes)),
      COLUMN("host.network.received [MiB/s]", mebibytes_per_second(row.host.network_received)),
      COLUMN("host.network.sent [MiB/s]", mebibytes_per_second(row.host.network_sent)),
      COLUMN("host.energy [J]", cell(row.host.joules, "{:.3f} J")),
  };
  return table;
}

#undef COLUMN

constexpr std::uintmax_t kLongestLine = 64 * 1024;  // bytes

// Removes an incomplete last line. Reads only the end of the file, which may be large.
void keep_whole_lines(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return;
  const std::uintmax_t from = size > kLongestLine ? size - kLongestLine : 0;
  const std::string text = file_text(path, from);
  const std::size_t end = text.rfind('\n') + 1;  // 0 without a line end
  if (end == 0 && from > 0) return;
  if (end < text.size()) std::filesystem::resize_file(path, from + end, error);
}

}  // namespace

std::string monitor_header() {
  std::vector<std::string_view> names;
  for (const MonitorColumn& column : monitor_columns()) names.push_back(column.name);
  return fmt::format("{}\n", fmt::join(names, ", "));
}

std::string text_of(const MonitorRow& row) {
  std::vector<std::string> values;
  for (const MonitorColumn& column : monitor_columns()) values.push_back(column.value(row));
  return fmt::format("{}\n", fmt::join(values, ", "));
}

MonitorFile::MonitorFile(std::filesystem::path path, bool goes_on) : path_(std::move(path)) {
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  const std::filesystem::file_status found = std::filesystem::symlink_status(path_, error);
  if (std::filesystem::is_symlink(found)) {
    set_earlier_aside();
    return;
  }
  if (!std::filesystem::is_regular_file(found) || std::filesystem::file_size(path_, error) == 0) return;
  std::string line;
  if (goes_on) std::getline(std::ifstream(path_), line);
  if (line + '\n' == monitor_header())
    keep_whole_lines(path_);
  else
    set_earlier_aside();
}

void MonitorFile::set_earlier_aside() {
  const std::filesystem::path earlier = name_of_earlier(path_);
  std::error_code error;
  std::filesystem::rename(path_, earlier, error);
  if (!error) return;
  std::error_code unknown;
  const bool is_link = std::filesystem::is_symlink(std::filesystem::symlink_status(path_, unknown));
  log::warning("cannot rename {} to {}: {}; {}", path_.string(), earlier.string(), error.message(),
               is_link ? "rows of this run are not written, because it is a symbolic link"
                       : "rows of this run are appended to it");
}

void MonitorFile::append(std::span<const MonitorRow> rows) {
  std::error_code failed;
  const std::uintmax_t size = std::filesystem::file_size(path_, failed);
  std::string text = failed || size == 0 ? monitor_header() : "";
  for (const MonitorRow& row : rows) text += text_of(row);
  const int error = append_whole(path_, text);
  if (error == 0 || warned_) return;
  warned_ = true;
  log::warning("cannot write {}: {}; training continues without it", path_.string(), std::strerror(error));
}

}  // namespace lockstep
