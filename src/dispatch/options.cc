#include "dispatch/options.h"

#include <fmt/format.h>

#include <charconv>

namespace tessera {
namespace {

constexpr const char* kDefault = "default";

bool ReadNumber(std::string_view text, int64_t& value) {
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return !text.empty() && read.ec == std::errc() && read.ptr == end;
}

}  // namespace

std::string OptionText(bool value) { return value ? "true" : "false"; }
std::string OptionText(int64_t value) { return fmt::format("{}", value); }
std::string OptionText(const std::string& value) { return value; }
std::string OptionText(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ",")); }
std::string OptionText(const std::optional<int64_t>& value) { return value ? OptionText(*value) : kDefault; }
std::string OptionText(const std::optional<TileSize>& tile) {
  return tile ? fmt::format("{}x{}", tile->q, tile->kv) : kDefault;
}
std::string OptionText(const MemorySpace& space) { return ToText(space); }

bool ReadOption(const std::string& text, bool& value) {
  value = text == "true";
  return value || text == "false";
}

bool ReadOption(const std::string& text, int64_t& value) { return ReadNumber(text, value); }

bool ReadOption(const std::string& text, std::string& value) {
  value = text;
  return true;
}

bool ReadOption(const std::string& text, std::vector<std::string>& names) {
  names.clear();
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    names.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return true;
}

bool ReadOption(const std::string& text, std::optional<int64_t>& value) {
  value.reset();
  return text == kDefault || ReadNumber(text, value.emplace());
}

bool ReadOption(const std::string& text, std::optional<TileSize>& tile) {
  tile.reset();
  if (text == kDefault) return true;
  const size_t cross = text.find('x');
  if (cross == std::string::npos) return false;
  const std::string_view whole = text;
  TileSize& read = tile.emplace();
  return ReadNumber(whole.substr(0, cross), read.q) && ReadNumber(whole.substr(cross + 1), read.kv);
}

bool ReadOption(const std::string& text, MemorySpace& space) {
  space = {};
  if (text == ToText(space)) return true;
  const size_t colon = text.find(':');
  if (colon == std::string::npos || !ReadNumber(std::string_view(text).substr(colon + 1), space.ordinal)) return false;
  space.kind = text.rfind("gpu:", 0) == 0 ? MemoryKind::kGpu : MemoryKind::kTpu;
  return ToText(space) == text;
}

}  // namespace tessera
