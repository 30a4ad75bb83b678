// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launch/program/commands/command_help.h"
#include "launch/program/config/config.h"
#include "launch/program/config/config_keys.h"

namespace lockstep {
namespace {

// Bash splits train.batch=64 into three words. The @...@ placeholders are filled in below.
constexpr std::string_view kScript = R"(# Completion of lockstep for bash: source <(lockstep completion bash)
_lockstep() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} key=
  COMPREPLY=()
  if [[ $current == = ]]; then
    key=$before current=
  elif [[ $before == = ]]; then
    key=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if [[ -n $key ]]; then
    case $key in
@VALUES@      data.path) _lockstep_files -f "$current" ;;
      run.dir | kernels.cache) _lockstep_files -d "$current" ;;
      --*) _lockstep_flag "$key" "$current" ;;
    esac
    return
  fi
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$current"))
    return
  fi
  local flags= arguments=
  case ${COMP_WORDS[1]} in
@FLAGS@  esac
  if [[ $before == -* ]] && _lockstep_flag "$before" "$current"; then return; fi
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
    return
  fi
  case $arguments in
    CONFIG) _lockstep_configs "$current" ;;
    FILE | WEIGHTS) _lockstep_files -f "$current" ;;
    FOLDER | RUN) _lockstep_files -d "$current" ;;
    COMMAND) COMPREPLY=($(compgen -W "@COMMANDS@" -- "$current")) ;;
    SHELL) COMPREPLY=($(compgen -W "bash" -- "$current")) ;;
  esac
}

# Names with blanks stay whole.
_lockstep_files() {
  mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
  compopt -o filenames 2>/dev/null
}

# Presets, configuration files, and folders, which may contain one.
_lockstep_configs() {
  COMPREPLY=($(compgen -W "@PRESETS@" -- "$1"))
  local presets=("${COMPREPLY[@]}") i
  _lockstep_files -f "$1"
  for i in "${!COMPREPLY[@]}"; do
    [[ -d ${COMPREPLY[i]} || ${COMPREPLY[i]} == *.toml ]] || unset "COMPREPLY[i]"
  done
  COMPREPLY=("${presets[@]}" "${COMPREPLY[@]}")
}

# The value after a flag of the command; fails for one that takes none.
_lockstep_flag() {
  case "${COMP_WORDS[1]} $1" in
@FLAG_VALUES@    *) return 1 ;;
  esac
  return 0
}

complete -F _lockstep lockstep
)";

void fill(std::string& script, const std::string& place, const std::string& text) {
  for (std::size_t at = script.find(place); at != std::string::npos;
       at = script.find(place, at + text.size()))
    script.replace(at, place.size(), text);
}

// Shell code that offers the words that begin with the variable's value.
std::string compgen_words(const std::string& words, const char* variable) {
  return fmt::format(R"(COMPREPLY=($(compgen -W "{}" -- "${}")))", words, variable);
}

// For each key with a few words, or true and false: the case that completes its value.
std::string value_cases(const Registry& registry) {
  std::string cases;
  Config defaults;
  for (const detail::Key& key : detail::keys_of(registry)) {
    std::string words;
    if (std::holds_alternative<detail::Flag>(key.member(defaults))) words = "true false";
    for (const std::string& word : key.words)
      if (word.find(' ') == std::string::npos) words += (words.empty() ? "" : " ") + word;
    if (words.empty()) continue;
    cases += fmt::format("      {}) {} ;;\n", key.name, compgen_words(words, "current"));
  }
  return cases;
}

// Each key, followed by `end`.
std::string all_keys(const Registry& registry, const char* end) {
  std::string words;
  for (const detail::Key& key : detail::keys_of(registry))
    words += (words.empty() ? "" : " ") + key.name + end;
  return words;
}

// Shell code that completes a flag's value: "KEY=VALUE", "KEY", "CONFIG", "FILE", "FILE|TIME", "FOLDER",
// "auto|FOLDER", "auto|cpu|cuda"; nothing for a number.
std::string flag_action(const std::string& value, const Registry& registry) {
  if (value == "KEY=VALUE")
    return compgen_words(all_keys(registry, "="), "2") + "; compopt -o nospace 2>/dev/null";
  if (value == "KEY") return compgen_words(all_keys(registry, ""), "2");
  if (value == "CONFIG") return R"(_lockstep_configs "$2")";
  if (value.starts_with("FILE")) return R"(_lockstep_files -f "$2")";
  if (value == "FOLDER") return R"(_lockstep_files -d "$2")";
  if (value.find('|') == std::string::npos) return ":";
  std::string words = value;
  fill(words, "|FOLDER", "");
  const bool folders = words != value;
  fill(words, "|", " ");
  if (!folders) return compgen_words(words, "2");
  return fmt::format(R"(_lockstep_files -d "$2"; COMPREPLY+=($(compgen -W "{}" -- "$2")))", words);
}

}  // namespace

std::string bash_completion(std::span<const CommandHelp> commands, const Registry& registry) {
  std::string names, flags, flag_values;
  for (const CommandHelp& command : commands) {
    names += (names.empty() ? "" : " ") + command.name;
    std::string words;
    for (const FlagHelp& flag : command.flags) {
      words += (words.empty() ? "" : " ") + flag.names.back();
      if (flag.value.empty()) continue;
      flag_values += fmt::format("    \"{} {}\") {} ;;\n", command.name, flag.names.back(),
                                 flag_action(flag.value, registry));
    }
    const std::string argument = command.arguments.empty() ? "" : command.arguments.front().name;
    flags += fmt::format("    {}) flags=\"{}\" arguments={} ;;\n", command.name, words, argument);
  }
  std::string script(kScript);
  fill(script, "@COMMANDS@", names);
  fill(script, "@FLAGS@", flags);
  fill(script, "@FLAG_VALUES@", flag_values);
  fill(script, "@VALUES@", value_cases(registry));
  fill(script, "@PRESETS@", fmt::format("{}", fmt::join(preset_names(registry), " ")));
  return script;
}

}  // namespace lockstep
