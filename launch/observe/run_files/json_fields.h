// SPDX-License-Identifier: Apache-2.0
//
// FieldWriter and FieldReader: a record as a JSON object, written and read by one table of its fields, in the
// order of the file:
//
//   void fields_of(auto& fields, Is<StepLine> auto& line) {
//     fields("epoch", line.epoch);
//     fields("loss", line.loss);
//   }
//
// A table is a function in namespace lockstep. A field's value is a number, a text, a StepAccount, a record
// with a table, or an optional or a list of these. Reading accepts members that are missing, null, of
// another type or out of range: a floating-point number is then NaN, an optional or a list is empty, other
// values keep their defaults.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "launch/observe/account/account_json.h"

namespace lockstep {

// A record to read, or a const one to write.
template <typename T, typename Record>
concept Is = std::same_as<std::remove_const_t<T>, Record>;

template <typename T>
inline constexpr bool kIsList = false;
template <typename T>
inline constexpr bool kIsList<std::vector<T>> = true;

// A number of every item, written as a list with this name.
template <typename Item>
struct Column {
  const char* name;
  double Item::*number;
};

class FieldWriter {
 public:
  // json: null or an object; outlives this.
  explicit FieldWriter(nlohmann::ordered_json& json) : object_(json) {}

  // An empty optional becomes null.
  void operator()(const char* name, const auto& value) { object_[name] = json_with(value); }
  // A count without which FieldReader throws DataError.
  void needed(const char* name, std::int64_t count) { (*this)(name, count); }
  // Omitted if empty.
  void some(const char* name, const auto& value) {
    if (nlohmann::ordered_json json = json_with(value); !json.empty()) object_[name] = std::move(json);
  }
  // Not read.
  void derived(const char* name, const auto& value) { (*this)(name, value); }
  // The fields of an optional record as members of this object; none if it is empty.
  void flat(const auto& record) {
    if (record) fields_of(*this, *record);
  }
  // An object with the fields of table(fields). A later call extends it.
  void object(const char* name, bool written, const auto& table) {
    if (!written) return;
    FieldWriter inside(object_[name]);
    table(inside);
  }
  // A list of objects with the fields of table(fields, item, index).
  void list(const char* name, const auto& items, const auto& table) {
    nlohmann::ordered_json& all = object_[name] = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < items.size(); ++i) {
      FieldWriter inside(all.emplace_back());
      table(inside, items[i], i);
    }
  }
  // In a table of list(), for its item i: written_as(values[i]), of a list that is stored apart from the
  // items. Omitted if values is shorter.
  template <typename Form = std::identity>
  void element(const char* name, const auto& values, std::size_t i, const Form& written_as = {}) {
    if (i < values.size()) object_[name] = json_with(written_as(values[i]));
  }
  // Omitted without items.
  template <typename Item>
  void columns(const std::vector<Item>& items,
               std::initializer_list<Column<std::type_identity_t<Item>>> all) {
    if (items.empty()) return;
    for (const auto& [name, number] : all) {
      std::vector<double> numbers;
      for (const Item& item : items) numbers.push_back(item.*number);
      object_[name] = numbers;
    }
  }
  // A list of rows; omitted if empty. The matrix is square.
  void matrix(const char* name, const std::vector<std::int64_t>& numbers, std::int64_t rows) {
    for (auto row = numbers.begin(); row != numbers.end(); row += rows)
      object_[name].push_back(std::vector<std::int64_t>(row, row + rows));
  }

 private:
  template <typename Value>
  static nlohmann::ordered_json json_with(const Value& value) {
    nlohmann::ordered_json json;
    if constexpr (std::same_as<Value, StepAccount>) {
      json = json_of(value);
    } else if constexpr (requires { value.has_value(); }) {
      if (value) json = json_with(*value);
    } else if constexpr (kIsList<Value>) {
      json = nlohmann::ordered_json::array();
      for (const auto& each : value) json.push_back(json_with(each));
    } else if constexpr (requires(FieldWriter & fields) { fields_of(fields, value); }) {
      FieldWriter fields(json);
      fields_of(fields, value);
    } else {
      json = value;
    }
    return json;
  }

  nlohmann::ordered_json& object_;
};

// Has the functions of FieldWriter; each reads its field.
class FieldReader {
 public:
  // json: outlives this. A value that is not an object has no members.
  explicit FieldReader(const nlohmann::json& json) : object_(json) {}

  void operator()(const char* name, auto& value) { found_ |= read(member(name), value); }
  void needed(const char* name, std::int64_t& count) {
    if (!read(member(name), count) || count < 0) throw DataError(fmt::format("has no valid number {}", name));
  }
  void some(const char* name, auto& value) { (*this)(name, value); }
  void derived(const char*, const auto&) {}
  template <typename Record>
  void flat(std::optional<Record>& record) {
    FieldReader fields(object_);
    Record value;
    fields_of(fields, value);
    if (fields.found_) record = std::move(value);
  }
  void object(const char* name, bool, const auto& table) {
    FieldReader inside(member(name));
    table(inside);
  }
  void list(const char* name, auto& items, const auto& table) {
    const nlohmann::json& all = member(name);
    if (!all.is_array()) return;
    for (const nlohmann::json& each : all) {
      if (!each.is_object()) continue;
      FieldReader inside(each);
      items.emplace_back();
      table(inside, items.back(), items.size() - 1);
    }
  }
  template <typename Form = std::identity>
  void element(const char* name, auto& values, std::size_t i, const Form& = {}) {
    values.resize(i + 1);
    read(member(name), values[i]);
  }
  // The first column determines the number of items.
  template <typename Item>
  void columns(std::vector<Item>& items, std::initializer_list<Column<std::type_identity_t<Item>>> all) {
    for (const auto& [name, number] : all) {
      std::vector<double> numbers;
      found_ |= read(member(name), numbers);
      if (name == all.begin()->name) items.resize(numbers.size());
      numbers.resize(items.size(), kMissing);
      for (std::size_t i = 0; i < items.size(); ++i) items[i].*number = numbers[i];
    }
  }
  // Empty if the rows do not form a square matrix.
  void matrix(const char* name, std::vector<std::int64_t>& numbers, std::int64_t& rows) {
    const nlohmann::json& lists = member(name);
    const auto fits = [&](const nlohmann::json& row) { return row.is_array() && row.size() == lists.size(); };
    if (!lists.is_array() || !std::ranges::all_of(lists, fits)) return;
    rows = static_cast<std::int64_t>(lists.size());
    for (const nlohmann::json& row : lists) found_ |= read(row, numbers);
  }

 private:
  static constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
  static constexpr double kMost = 1e15;  // of an integer; exact as a double

  const nlohmann::json& member(const char* name) const {
    static const nlohmann::json kNone;
    const auto found = object_.find(name);
    return found == object_.end() ? kNone : *found;
  }

  // Returns whether the JSON has such a value. Appends to a list.
  template <typename Value>
  static bool read(const nlohmann::json& json, Value& value) {
    if constexpr (std::floating_point<Value>) {
      value = json.is_number() ? json.get<Value>() : kMissing;
      return json.is_number();
    } else if constexpr (std::integral<Value>) {
      const double number = json.is_number() ? json.get<double>() : kMissing;
      if (!(std::abs(number) < kMost) || !std::in_range<Value>(static_cast<std::int64_t>(number)))
        return false;
      value = static_cast<Value>(number);
      return true;
    } else if constexpr (std::same_as<Value, std::string>) {
      if (json.is_string()) value = json.get<std::string>();
      return json.is_string();
    } else if constexpr (std::same_as<Value, StepAccount>) {
      value = account_from(json);
      return json.is_object();
    } else if constexpr (requires { value.has_value(); }) {
      typename Value::value_type inner{};
      if (read(json, inner)) value = std::move(inner);
      return value.has_value();
    } else if constexpr (kIsList<Value>) {
      if (!json.is_array()) return false;
      using Item = typename Value::value_type;
      constexpr bool kOfRecords = !std::is_arithmetic_v<Item> && !std::same_as<Item, std::string>;
      for (const nlohmann::json& each : json)  // skips records that are not objects
        if (!kOfRecords || each.is_object()) read(each, value.emplace_back());
      return !value.empty();
    } else {
      FieldReader fields(json);
      fields_of(fields, value);
      return json.is_object() && !json.empty();
    }
  }

  const nlohmann::json& object_;
  bool found_ = false;  // a value that is not missing
};

}  // namespace lockstep
