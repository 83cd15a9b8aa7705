// See shorthand.h.
#include "shorthand.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "arguments.h"

namespace tessera::program {
namespace {

constexpr const char* kForm =
    "a contract in one argument is MASK:LENGTH[:hQ/KV][:dQK/V][:bN][:tQxKV][:capX][:DTYPE], such as "
    "causal,window=1023:8192:h8/2:d128:bf16";

Error Bad(const std::string& argument, std::string_view what) {
  return {ErrorCode::kBadArgument, fmt::format("{}; {}", what, kForm), argument, {}};
}

// At a character outside of parentheses and quotes, which belong to an expression.
std::vector<std::string_view> Split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '(' || c == ')') {
      depth += c == '(' ? 1 : -1;
    } else if (c == at && depth <= 0) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

bool IsNumber(std::string_view text) {
  return NumberProblem(std::string(text), {1, std::numeric_limits<int64_t>::max()}).empty();
}

struct Pair {
  std::string_view first;
  std::string_view second;
};

// "8/2" -> {8, 2}; "8" -> {8, 8}.
std::optional<Pair> ReadPair(std::string_view text, char at) {
  const size_t found = text.find(at);
  const std::string_view first = text.substr(0, found);
  const std::string_view second = found == std::string_view::npos ? first : text.substr(found + 1);
  if (!IsNumber(first) || !IsNumber(second)) return std::nullopt;
  return Pair{first, second};
}

// window=1023 -> window(1023, 0); window=64/64 -> window(64, 64); sink=4/document -> sink(4, document).
std::string TermText(std::string_view term) {
  const size_t equals = term.find('=');
  // An expression's own "=" stands in the quotes of a bitmap's name.
  if (equals == std::string_view::npos || term.find('(') < equals) return std::string(term);
  const std::string_view word = term.substr(0, equals);
  std::string values(term.substr(equals + 1));
  if (word == "window" && values.find('/') == std::string::npos) values += "/0";
  std::string spaced;
  for (const char c : values) spaced += c == '/' ? ", " : std::string(1, c);
  return fmt::format("{}({})", word, spaced);
}

std::string MaskText(std::string_view mask) {
  const std::vector<std::string_view> terms = Split(mask, ',');
  std::string text;
  for (const std::string_view term : terms) {
    // `a or b, c` means that all hold: what joins more loosely than `and` is kept together.
    const bool is_apart = terms.size() > 1 && term.find(' ') != std::string_view::npos;
    text += (text.empty() ? "" : " and ") + (is_apart ? fmt::format("({})", term) : TermText(term));
  }
  return text;
}

// A TOML string that holds any expression.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

// The sections of the contract's text, filled by the fields.
struct Sections {
  std::string shape;
  std::string score;
  std::string tiles;
};

// The field's kind, of which a contract has one each; empty: it is none.
std::string_view AddField(std::string_view field, Sections& sections) {
  constexpr std::array<std::string_view, 3> kTypes = {"f32", "bf16", "f16"};
  if (std::find(kTypes.begin(), kTypes.end(), field) != kTypes.end()) {
    sections.shape += fmt::format("dtype = \"{}\"\n", field);
    return "the type";
  }
  constexpr std::string_view kCap = "cap";
  if (field.substr(0, kCap.size()) == kCap && field.size() > kCap.size()) {
    const std::string_view number = field.substr(kCap.size());
    if (number.find_first_not_of("0123456789.") != std::string_view::npos) return {};
    sections.score += fmt::format("softcap = {}\n", number);
    return "the softcap";
  }
  const std::string_view value = field.substr(field.empty() ? 0 : 1);
  const auto numbers = ReadPair(value, field.substr(0, 1) == "t" ? 'x' : '/');
  if (!numbers) return {};
  if (field[0] == 'h') {
    sections.shape += fmt::format("num_q_heads = {}\nnum_kv_heads = {}\n", numbers->first, numbers->second);
    return "heads";
  }
  if (field[0] == 'd') {
    sections.shape += fmt::format("dim_qk = {}\ndim_v = {}\n", numbers->first, numbers->second);
    return "dims";
  }
  if (field[0] == 'b' && IsNumber(value)) {
    sections.shape += fmt::format("batch = {}\n", value);
    return "batch";
  }
  if (field[0] == 't') {
    sections.tiles = fmt::format("[tiles]\nq = {}\nkv = {}\nreason = \"asked for\"\n", numbers->first, numbers->second);
    return "tiles";
  }
  return {};
}

}  // namespace

bool IsShorthand(const std::string& argument) {
  std::error_code ignored;
  return argument.find(':') != std::string::npos && !std::filesystem::exists(argument, ignored);
}

Result<std::string> TextOfShorthand(const std::string& argument) {
  const std::vector<std::string_view> parts = Split(argument, ':');
  const auto length = parts.size() < 2 ? std::nullopt : ReadPair(parts[1], 'x');
  if (!length && parts.size() > 1 && !parts[0].empty() && parts[0].find('/') == std::string_view::npos) {
    return tl::unexpected(Bad(argument, fmt::format("there is no such file, and '{}' is no length", parts[1])));
  }
  if (!length || parts[0].empty()) return tl::unexpected(Bad(argument, "there is no such file"));
  Sections sections;
  sections.shape = fmt::format("q_len = {}\nkv_len = {}\n", length->first, length->second);
  std::set<std::string_view> kinds;
  for (size_t i = 2; i < parts.size(); ++i) {
    const std::string_view kind = AddField(parts[i], sections);
    if (kind.empty()) return tl::unexpected(Bad(argument, fmt::format("'{}' is no field", parts[i])));
    if (!kinds.insert(kind).second)
      return tl::unexpected(Bad(argument, fmt::format("'{}' is a second field for {}", parts[i], kind)));
  }
  if (kinds.count("dims") == 0) sections.shape += "dim_qk = 64\n";
  return fmt::format("version = 1\n[shape]\n{}[mask]\nexpr = {}\n[score]\n{}{}", sections.shape,
                     Quoted(MaskText(parts[0])), sections.score, sections.tiles);
}

std::string SourceOf(const std::string& argument) {
  if (argument == "-") return "standard input";
  return (IsShorthand(argument) ? "argument " : "file ") + argument;
}

}  // namespace tessera::program
