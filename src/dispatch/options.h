// The options of an attention, each stated once: its name in receipts and keys, where it is kept, and what depends on
// it. Keys, receipts and repeats all walk this list; a new option is a new line here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/prepare.h"

namespace tessera {

enum class OptionUse : uint8_t {
  kDecides,  // decisions depend on it: part of the key
  kSpells,   // its meaning is in the key by other fields; how it is written still tells requests apart
  kRuns,     // only calls and plans depend on it
};

// Calls visit(name, member, use) in the order of names.
template <class Options, class Visit>
void VisitOptions(Options& o, const Visit& visit) {
  visit("backward", o.backward, OptionUse::kRuns);
  visit("disable", o.plan.disable, OptionUse::kDecides);
  visit("exclude", o.exclude, OptionUse::kDecides);
  visit("experimental", o.experimental, OptionUse::kRuns);
  visit("forward", o.forward, OptionUse::kRuns);
  visit("isa", o.isa, OptionUse::kDecides);
  visit("keep_programs", o.xla.keep_programs, OptionUse::kRuns);
  visit("lane", o.lane, OptionUse::kDecides);
  visit("memory", o.memory, OptionUse::kDecides);
  visit("optimization", o.xla.optimization, OptionUse::kRuns);
  visit("plugin", o.xla.plugin, OptionUse::kDecides);
  visit("plugin_device", o.xla.device, OptionUse::kRuns);
  visit("strict", o.strict, OptionUse::kRuns);
  visit("threads", o.threads, OptionUse::kRuns);
  visit("tile", o.plan.tile, OptionUse::kSpells);
  visit("widen_class", o.plan.widen_class, OptionUse::kRuns);
}

// How receipts write a value, and back; false for text that no value of the type is written as.
std::string OptionText(bool value);
std::string OptionText(int64_t value);
std::string OptionText(const std::string& value);
std::string OptionText(const std::vector<std::string>& names);
std::string OptionText(const std::optional<int64_t>& value);  // "default" when absent
std::string OptionText(const std::optional<TileSize>& tile);
std::string OptionText(const MemorySpace& space);
bool ReadOption(const std::string& text, bool& value);
bool ReadOption(const std::string& text, int64_t& value);
bool ReadOption(const std::string& text, std::string& value);
bool ReadOption(const std::string& text, std::vector<std::string>& names);
bool ReadOption(const std::string& text, std::optional<int64_t>& value);
bool ReadOption(const std::string& text, std::optional<TileSize>& tile);
bool ReadOption(const std::string& text, MemorySpace& space);

// A lane was asked for by name.
inline bool IsForced(const AttentionOptions& options) { return options.lane != "auto"; }

}  // namespace tessera
