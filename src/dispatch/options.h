// Walks the options of an attention, which receipt/options.def states once each: keys, receipts and repeats follow it.
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
#define TESSERA_OPTION(name, member, use) visit(#name, o.member, OptionUse::use);
#include "receipt/options.def"
#undef TESSERA_OPTION
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
