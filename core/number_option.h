// SPDX-License-Identifier: Apache-2.0
//
// NumberOption: a numeric setting of one entry of a table (an optimizer, a schedule, a network or a gradient
// exchange), in addition to the settings that all entries share. It is declared beside the implementation and
// becomes the configuration key SECTION.ENTRY.OPTION, with its help and its checks.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lockstep {

struct NumberOption {
  std::string_view name;
  double initial = 0;
  double least = 0;
  double most = 0;
  std::string_view meaning;  // in one line
  bool whole = false;        // integers only; exchanges check it, too (ExchangeChoice::check)
};

// The values of such options in one section.
class OwnNumbers {
 public:
  // Read or set; starts at the option's initial value. The reference stays valid.
  double& at(std::string_view entry, const NumberOption& option) {
    return values_.try_emplace(name_of(entry, option), option.initial).first->second;
  }
  double of(std::string_view entry, const NumberOption& option) const {
    const auto found = values_.find(name_of(entry, option));
    return found == values_.end() ? option.initial : found->second;
  }

 private:
  static std::string name_of(std::string_view entry, const NumberOption& option) {
    return std::string(entry).append(".").append(option.name);
  }

  std::map<std::string, double> values_;
};

}  // namespace lockstep
