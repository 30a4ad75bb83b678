// SPDX-License-Identifier: Apache-2.0
//
// Times a collective in several ways, in turns, checks every result, and prints both as nccl-tests do: size,
// count, type, redop, root, and time, algbw, busbw and #wrong for both out of place and in place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/collective_ways.h"
#include "benchmarks/measure.h"

namespace lockstep {

struct Turns {
  int timed = 20;
  int warmup = 5;
  bool check = true;
};

// Timing of one way and placement, the same on every rank.
struct Timing {
  std::vector<double> seconds;         // of each timed turn, the mean over ranks
  std::optional<std::uint64_t> wrong;  // wrong elements over all turns and ranks; none if not checked
};

struct WayTimings {
  std::string_view way;
  std::optional<Timing> out_of_place;  // none for a barrier
  Timing in_place;
};

// Collective over host, whose barrier precedes each run. Every turn runs every way in both placements, each
// turn starting with another one.
std::vector<WayTimings> time_ways(Communicator& host, const std::vector<Way*>& ways, const CollectiveCase& c,
                                  const Turns& turns);

// One way's row of the table. Bandwidths in GB/s of 1e9 bytes.
struct BandwidthRow {
  struct Placement {
    double time_us = 0;
    double algbw = 0;
    double busbw = 0;
    std::optional<std::uint64_t> wrong;
    // For each way, in the order of the ways: its time divided by this time, by turn.
    std::vector<std::pair<std::string_view, Spread>> over = {};
  };
  CollectiveCase c;
  std::string_view way;
  std::optional<Placement> out_of_place;
  Placement in_place;
};
std::vector<BandwidthRow> rows_of(const CollectiveCase& c, const std::vector<WayTimings>& timings);

std::string table_header();
std::string table_line(const BandwidthRow& row);
// {collective, bytes, count, type, redop, root, way, out_of_place {..} or null, in_place {time_us,
// algbw_gb_per_s, busbw_gb_per_s, wrong or null, speed_over {WAY {median, spread [least, most]}, ..}}}
nlohmann::json to_json(const BandwidthRow& row);

// The last lines: the number of wrong elements, and each way's mean bus bandwidth.
std::string table_footer(const std::vector<BandwidthRow>& rows, bool checked);
std::uint64_t wrong_in(const std::vector<BandwidthRow>& rows);

}  // namespace lockstep
