// SPDX-License-Identifier: Apache-2.0
#include "comm/codecs/codec_plan.h"

#include <algorithm>
#include <string_view>

#include "core/error.h"

namespace lockstep {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

// True if the name matches the pattern; "*" matches any characters.
bool matches(std::string_view pattern, std::string_view name) {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  for (std::size_t rest = star; rest <= name.size(); ++rest) {
    if (matches(pattern.substr(star + 1), name.substr(rest))) return true;
  }
  return false;
}

// The end of the parameter's padding.
std::int64_t end_of(const Bucket& bucket, std::span<const Parameter> parameters, std::size_t parameter) {
  return parameter + 1 < bucket.last_parameter ? parameters[parameter + 1].offset : bucket.end;
}

// Places where packed elements may be cut: the beginnings of parameters.
std::vector<std::int64_t> beginnings(const PackedStretch& stretch, std::span<const Parameter> parameters) {
  std::vector<std::int64_t> places;
  for (const CodecPiece& piece : pieces_of(stretch, parameters, {0, stretch.packed}))
    places.push_back(piece.place);
  return places;
}

void deal_whole_parameters(PackedStretch& stretch, std::span<const Parameter> parameters, int drivers) {
  const std::vector<std::int64_t> places = beginnings(stretch, parameters);
  std::int64_t begin = 0;
  for (int driver = 1; driver <= drivers; ++driver) {
    const std::int64_t ideal = stretch.packed * driver / drivers;
    std::int64_t end = stretch.packed;
    for (const std::int64_t place : places) {
      if (driver < drivers && std::abs(place - ideal) < std::abs(end - ideal)) end = place;
    }
    end = std::max(begin, end);
    stretch.shares.push_back({begin, end});
    begin = end;
  }
  stretch.room = stretch.packed;
}

}  // namespace

PackedStretch pack_stretch(const Bucket& bucket, std::span<const Parameter> parameters,
                           const std::vector<bool>& chosen) {
  PackedStretch stretch;
  for (std::size_t i = bucket.first_parameter; i < bucket.last_parameter; ++i) {
    if (!chosen[i]) continue;
    const ElementRange range{parameters[i].offset, end_of(bucket, parameters, i)};
    if (!stretch.runs.empty() && stretch.runs.back().range.end == range.begin) {
      stretch.runs.back().range.end = range.end;
    } else {
      stretch.runs.push_back({.range = range, .place = stretch.packed});
    }
    stretch.packed += range.count();
  }
  stretch.room = stretch.packed;
  return stretch;
}

void deal_shares(PackedStretch& stretch, std::span<const Parameter> parameters, const ShareRule& rule) {
  if (rule.whole_parameters) return deal_whole_parameters(stretch, parameters, rule.drivers);
  stretch.equal = round_up((stretch.packed + rule.drivers - 1) / rule.drivers, rule.unit);
  stretch.room = stretch.equal * rule.drivers;
  const std::int64_t used = round_up(stretch.packed, rule.unit);
  for (int driver = 0; driver < rule.drivers; ++driver) {
    const std::int64_t begin = std::min(driver * stretch.equal, used);
    stretch.shares.push_back({begin, std::min(begin + stretch.equal, used)});
  }
}

std::vector<CodecPiece> pieces_of(const PackedStretch& stretch, std::span<const Parameter> parameters,
                                  ElementRange share) {
  std::vector<CodecPiece> pieces;
  for (const PackedRun& run : stretch.runs) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (parameter.offset < run.range.begin || parameter.offset >= run.range.end) continue;
      const std::int64_t place = run.place + parameter.offset - run.range.begin;
      const std::int64_t begin = std::max(place, share.begin);
      const std::int64_t end = std::min(place + parameter.layout.physical_elements(), share.end);
      if (begin >= end) continue;
      pieces.push_back({.parameter = i, .range = {begin - place, end - place}, .place = begin - share.begin});
    }
  }
  return pieces;
}

std::vector<std::size_t> choose_codecs(std::span<const Parameter> parameters, const CodecRules& rules) {
  std::vector<std::size_t> choice(parameters.size(), 0);
  for (std::size_t rule = rules.rules.size(); rule-- > 0;) {
    bool found = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!matches(rules.rules[rule].pattern, parameters[i].name)) continue;
      choice[i] = rule + 1;
      found = true;
    }
    if (!found && !parameters.empty()) {
      throw ConfigError(
          fmt::format("comm.codec_for: no parameter name matches \"{}\"; the first parameter is \"{}\"",
                      rules.rules[rule].pattern, parameters.front().name));
    }
  }
  return choice;
}

}  // namespace lockstep
