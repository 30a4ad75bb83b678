// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/collective_bench.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "benchmarks/measure.h"
#include "core/timeline.h"

namespace lockstep {
namespace {

enum class Placement { out_of_place, in_place };

// One way in one placement, with its results so far.
class Contender {
 public:
  Contender(Way& way, Placement placement, const CollectiveCase& c, int rank)
      : way_(way), c_(c), rank_(rank), send_(way.memory().send.data()), recv_(way.memory().recv.data()) {
    if (placement == Placement::in_place) {
      send_ = recv_ + c.in_place_send_offset(rank);
      recv_ += way.result_offset(c, rank);
    }
  }

  // Writes inputs, and 0xff bytes, which are no valid result, to the receive memory. scratch: on the host.
  void prepare(std::vector<std::byte>& scratch) {
    const WayMemory& memory = way_.memory();
    scratch.assign(c_.bytes(), std::byte{0xff});
    if (!scratch.empty()) way_.put(memory.recv.data(), scratch.data(), scratch.size());
    const bool gives = c_.kind != CollectiveKind::broadcast || rank_ == c_.root;
    if (!gives || c_.kind == CollectiveKind::barrier) return;
    fill_input(c_, rank_, scratch.data());
    way_.put(send_, scratch.data(), c_.send_bytes());
  }

  double run() {
    const std::int64_t begin = now_ns();
    way_.run(c_, send_, recv_);
    return seconds_since(begin);
  }

  void keep(double seconds) { seconds_.push_back(static_cast<float>(seconds)); }

  void check(std::vector<std::byte>& scratch) {
    if (!way_.leaves_result()) return;
    scratch.resize(c_.recv_bytes());
    if (!scratch.empty()) way_.get(scratch.data(), recv_, scratch.size());
    wrong_ += count_wrong(c_, rank_, scratch.data());
  }

  // Collective: combines the times and wrong elements of all ranks.
  Timing timing(Communicator& host, bool checked) {
    auto wrong = static_cast<std::int32_t>(std::min<std::uint64_t>(wrong_, 1 << 20));
    host.all_reduce(seconds_.data(), seconds_.size(), DType::f32, ReduceOp::sum);
    host.all_reduce(&wrong, 1, DType::i32, ReduceOp::sum);
    host.stream().synchronize();
    Timing timing;
    for (const float sum : seconds_) timing.seconds.push_back(static_cast<double>(sum) / host.size());
    if (checked && way_.leaves_result()) timing.wrong = static_cast<std::uint64_t>(wrong);
    return timing;
  }

 private:
  Way& way_;
  const CollectiveCase& c_;
  int rank_;
  std::byte* send_;
  std::byte* recv_;
  std::vector<float> seconds_;
  std::uint64_t wrong_ = 0;
};

void take_turns(Communicator& host, std::vector<Contender>& contenders, const Turns& turns) {
  std::vector<std::byte> scratch;
  for (int turn = 0; turn < turns.warmup + turns.timed; ++turn) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      Contender& contender = contenders[(i + static_cast<std::size_t>(turn)) % contenders.size()];
      contender.prepare(scratch);
      host.barrier();
      host.stream().synchronize();
      const double seconds = contender.run();
      if (turn >= turns.warmup) contender.keep(seconds);
      if (turns.check) contender.check(scratch);
    }
  }
}

BandwidthRow::Placement placement_of(const CollectiveCase& c, const Timing& timing) {
  const double seconds = median(timing.seconds);
  BandwidthRow::Placement placement{.time_us = seconds * 1e6,
                                    .algbw = static_cast<double>(c.bytes()) / seconds * 1e-9,
                                    .wrong = timing.wrong};
  placement.busbw = placement.algbw * bus_factor(c.kind, c.ranks);
  return placement;
}

Spread speed_over(const Timing& other, const Timing& own) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < own.seconds.size(); ++i) ratios.push_back(other.seconds[i] / own.seconds[i]);
  return spread_of(ratios);
}

// Four digits: a slow link has a few hundredths of memory's bandwidth.
std::string bandwidth(double gb_per_s) {
  const int decimals = gb_per_s >= 100 ? 1 : gb_per_s >= 10 ? 2 : 3;
  return fmt::format("{:>7.{}f}", gb_per_s, decimals);
}

std::string columns(const std::optional<BandwidthRow::Placement>& placement) {
  if (!placement) return fmt::format("{:>10}  {:>7} {:>7} {:>6}", "-", "-", "-", "-");
  return fmt::format("{:>10.1f}  {} {} {:>6}", placement->time_us, bandwidth(placement->algbw),
                     bandwidth(placement->busbw),
                     placement->wrong ? std::to_string(*placement->wrong) : "N/A");
}

std::string_view type_of(const CollectiveCase& c) {
  return c.kind == CollectiveKind::barrier ? "none" : type_name(c.dtype);
}

nlohmann::json to_json(const BandwidthRow::Placement& placement) {
  nlohmann::json json{{"time_us", placement.time_us},
                      {"algbw_gb_per_s", placement.algbw},
                      {"busbw_gb_per_s", placement.busbw},
                      {"wrong", nullptr}};
  if (placement.wrong) json["wrong"] = *placement.wrong;
  for (const auto& [way, speed] : placement.over)
    json["speed_over"][std::string(way)] = {{"median", speed.typical}, {"spread", {speed.least, speed.most}}};
  return json;
}

}  // namespace

std::vector<WayTimings> time_ways(Communicator& host, const std::vector<Way*>& ways, const CollectiveCase& c,
                                  const Turns& turns) {
  const bool placed = c.kind != CollectiveKind::barrier;
  std::vector<Contender> contenders;
  for (Way* way : ways) {
    if (placed) contenders.emplace_back(*way, Placement::out_of_place, c, host.rank());
    contenders.emplace_back(*way, Placement::in_place, c, host.rank());
  }
  take_turns(host, contenders, turns);
  std::vector<WayTimings> found;
  for (auto contender = contenders.begin(); Way * way : ways) {
    WayTimings timings{.way = way->name(), .out_of_place = {}, .in_place = {}};
    if (placed) timings.out_of_place = (contender++)->timing(host, turns.check);
    timings.in_place = (contender++)->timing(host, turns.check);
    found.push_back(std::move(timings));
  }
  return found;
}

std::vector<BandwidthRow> rows_of(const CollectiveCase& c, const std::vector<WayTimings>& timings) {
  std::vector<BandwidthRow> rows;
  for (const WayTimings& way : timings) {
    BandwidthRow row{.c = c, .way = way.way, .out_of_place = {}, .in_place = {}};
    row.in_place = placement_of(c, way.in_place);
    if (way.out_of_place) row.out_of_place = placement_of(c, *way.out_of_place);
    for (const WayTimings& other : timings) {
      row.in_place.over.emplace_back(other.way, speed_over(other.in_place, way.in_place));
      if (row.out_of_place)
        row.out_of_place->over.emplace_back(other.way, speed_over(*other.out_of_place, *way.out_of_place));
    }
    rows.push_back(row);
  }
  return rows;
}

std::string table_header() {
  constexpr std::array names{"time", "algbw", "busbw", "#wrong"};
  constexpr std::array units{"(us)", "(GB/s)", "(GB/s)", ""};
  const auto group = [](const auto& four) {
    return fmt::format("{:>10}  {:>7} {:>7} {:>6}", four[0], four[1], four[2], four[3]);
  };
  return fmt::format("# {:>11}  {:>11}  {:>8}  {:>5}  {:>4}  {:<6}  {:^33}  {:^33}\n", "", "", "", "", "", "",
                     "out-of-place", "in-place") +
         fmt::format("# {:>11}  {:>11}  {:>8}  {:>5}  {:>4}  {:<6}  {}  {}  {:>7}\n", "size", "count", "type",
                     "redop", "root", "way", group(names), group(names), "vs mpi") +
         fmt::format("# {:>11}  {:>11}  {:>8}  {:>5}  {:>4}  {:<6}  {}  {}", "(B)", "(elements)", "", "", "",
                     "", group(units), group(units));
}

std::string table_line(const BandwidthRow& row) {
  const CollectiveCase& c = row.c;
  const int root = c.kind == CollectiveKind::broadcast ? c.root : -1;
  std::string line = fmt::format("{:>13}  {:>11}  {:>8}  {:>5}  {:>4}  {:<6}  {}  {}", c.bytes(), c.count,
                                 type_name(c.dtype), redop_name(c), root, row.way, columns(row.out_of_place),
                                 columns(row.in_place));
  for (const auto& [way, speed] : row.in_place.over)
    if (way == "mpi") line += fmt::format("  {:>6.2f}x", speed.typical);
  return line;
}

nlohmann::json to_json(const BandwidthRow& row) {
  const CollectiveCase& c = row.c;
  return {{"collective", name_of(c.kind)},
          {"bytes", c.bytes()},
          {"count", c.count},
          {"type", type_of(c)},
          {"redop", redop_name(c)},
          {"root", c.kind == CollectiveKind::broadcast ? c.root : -1},
          {"way", row.way},
          {"out_of_place", row.out_of_place ? to_json(*row.out_of_place) : nlohmann::json()},
          {"in_place", to_json(row.in_place)}};
}

std::uint64_t wrong_in(const std::vector<BandwidthRow>& rows) {
  std::uint64_t wrong = 0;
  for (const BandwidthRow& row : rows) {
    wrong += row.in_place.wrong.value_or(0);
    if (row.out_of_place) wrong += row.out_of_place->wrong.value_or(0);
  }
  return wrong;
}

std::string table_footer(const std::vector<BandwidthRow>& rows, bool checked) {
  const std::uint64_t wrong = wrong_in(rows);
  std::string text = checked
                         ? fmt::format("# Out of bounds values : {} {}", wrong, wrong == 0 ? "OK" : "FAILED")
                         : "# Out of bounds values : not checked";
  std::vector<std::pair<std::string_view, std::vector<double>>> ways;  // bus bandwidths of both placements
  for (const BandwidthRow& row : rows) {
    if (!row.out_of_place) continue;
    auto way = std::ranges::find(ways, row.way, &decltype(ways)::value_type::first);
    if (way == ways.end()) way = ways.insert(way, {row.way, {}});
    way->second.insert(way->second.end(), {row.out_of_place->busbw, row.in_place.busbw});
  }
  if (!ways.empty()) text += "\n# Avg bus bandwidth    :";
  for (const auto& [way, busbw] : ways) {
    const double sum = std::accumulate(busbw.begin(), busbw.end(), 0.0);
    text += fmt::format(" {} {:.4g}", way, sum / static_cast<double>(busbw.size()));
  }
  return text;
}

}  // namespace lockstep
