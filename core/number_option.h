// SPDX-License-Identifier: Apache-2.0
//
// NumberOption: a number that an entry of a table can be told, beside what all entries are told: an
// optimizer, a schedule, a network or an exchange of gradients. It stands beside the implementation, and is a
// key of the configuration, SECTION.ENTRY.OPTION, with its help and its checks.
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
  bool whole = false;        // nothing between whole numbers; exchanges check it, too (ExchangeChoice::check)
};

// What such options of one section were set to.
class OwnNumbers {
 public:
  // To be read or set; the option's initial value at first. Stays where it is.
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
