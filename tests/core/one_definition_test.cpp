// SPDX-License-Identifier: Apache-2.0
//
// One name, one type: two different types with the same name in one namespace are undefined behaviour that no
// linker reports, as soon as a program contains both. This includes alternative files (cuda, no_cuda): they
// must not define types that other files know.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/files/file_text.h"
#include "tests/source_folder.h"

namespace lockstep {
namespace {

// Removes comments, literals and preprocessor lines.
std::string code_of(const std::string& text) {
  std::string code;
  std::size_t at = 0;
  const auto starts = [&](std::string_view what) { return text.compare(at, what.size(), what) == 0; };
  const auto skip_past = [&](const std::string& end, std::size_t from) {
    const std::size_t found = text.find(end, from);
    at = found == std::string::npos ? text.size() : found + end.size();
  };
  const auto skip_literal = [&](char quote) {
    for (++at; at < text.size() && text[at] != quote; ++at) at += text[at] == '\\' ? 1 : 0;
    ++at;
  };
  while (at < text.size()) {
    const bool in_word = !code.empty() && std::isalnum(static_cast<unsigned char>(code.back())) != 0;
    if (starts("//") || starts("#")) {
      skip_past("\n", at);
      while (text[at - 2] == '\\') skip_past("\n", at);
    } else if (starts("/*")) {
      skip_past("*/", at);
    } else if (starts("R\"")) {
      skip_past(fmt::format("){}\"", text.substr(at + 2, text.find('(', at) - at - 2)), at);
    } else if (starts("\"") || (starts("'") && !in_word)) {  // not the separator of 1'000
      skip_literal(text[at]);
    } else {
      code.push_back(text[at++]);
    }
  }
  return code;
}

struct Scope {
  enum class Kind { named, unnamed, other };
  Kind kind;
  std::string name;
};

// The kind of scope that a brace opens, by the words before it.
Scope scope_opened_by(const std::string& words) {
  static const std::regex kNamespace(R"(\bnamespace(\s+([\w:]+))?\s*$)");
  std::smatch match;
  if (!std::regex_search(words, match, kNamespace)) return {Scope::Kind::other, ""};
  return match[2].matched ? Scope{Scope::Kind::named, match[2]} : Scope{Scope::Kind::unnamed, ""};
}

// The types that a file exposes to other files: in named namespaces, outside functions and types.
std::vector<std::string> types_defined_in(const std::string& text) {
  static const std::regex kType(
      R"(\b(?:struct|class|union|enum(?:\s+(?:struct|class))?)\s+(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?\s*(?::[^:]|$))");
  static const std::regex kTemplateArguments(R"(\b(struct|class)\s+\w+\s*<)");  // a specialisation
  std::vector<std::string> found;
  std::vector<Scope> scopes;
  std::string words;  // since the last ; { or }
  const auto shared = [&] {
    return std::ranges::all_of(scopes, [](const Scope& scope) { return scope.kind == Scope::Kind::named; });
  };
  for (const char c : code_of(text)) {
    if (c == '{') {
      std::smatch match;
      if (shared() && !std::regex_search(words, kTemplateArguments) &&
          std::regex_search(words, match, kType)) {
        std::string name;
        for (const Scope& scope : scopes) name += scope.name + "::";
        found.push_back(name + match[1].str());
      }
      scopes.push_back(scope_opened_by(words));
    }
    if (c == '}' && !scopes.empty()) scopes.pop_back();
    c == '{' || c == '}' || c == ';' ? words.clear() : words.push_back(c);
  }
  return found;
}

TEST(OneDefinition, EveryTypeHasItsOwnName) {
  const std::filesystem::path root = source_folder();
  std::map<std::string, std::set<std::string>> files_of;
  for (const char* folder : {"core", "kernels", "comm", "data", "models", "launch"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
      for (const std::string& type : types_defined_in(file_text(entry.path())))
        files_of[type].insert(entry.path().lexically_relative(root).string());
    }
  }
  EXPECT_GT(files_of.size(), 150u);
  EXPECT_TRUE(files_of.contains("lockstep::Communicator"));
  for (const auto& [type, files] : files_of) {
    std::string list;
    for (const std::string& file : files) list += " " + file;
    EXPECT_EQ(files.size(), 1u) << type << " is defined in" << list;
  }
}

TEST(OneDefinition, SeesTypesOfNamespacesOnly) {
  const std::string text = R"(
    namespace lockstep {
    struct Split { struct Inner { int a; }; };   // struct Comment {
    enum class Staging : int { a, b };
    class Later;
    template <typename T> class Box final : public Base<T> { void f() { struct Local {}; } };
    namespace { struct Hidden {}; }
    Split make(const char* text = "struct Quoted {") { return {}; }
    template <> struct Box<int> { };
    namespace detail { union Both { int a; float b; }; }
    }
    struct Global {};
  )";
  EXPECT_EQ(types_defined_in(text),
            (std::vector<std::string>{"lockstep::Split", "lockstep::Staging", "lockstep::Box",
                                      "lockstep::detail::Both", "Global"}));
}

}  // namespace
}  // namespace lockstep
