#include "base/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>

namespace tessera {
namespace {

constexpr size_t kExcerptBytes = 60;
constexpr size_t kLongestGuess = 32;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool IsContinuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// The last place at or before `bytes` that is between two characters.
size_t CutPoint(std::string_view text, size_t bytes) {
  size_t end = bytes;
  while (end > 0 && bytes - end < 4 && IsContinuation(text[end])) --end;
  return end;
}

char ToLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Letters left out, put in, replaced, or two that changed places.
size_t EditDistance(std::string_view a, std::string_view b) {
  const auto is_same = [&](size_t i, size_t j) { return ToLower(a[i]) == ToLower(b[j]); };
  std::vector<size_t> before;
  std::vector<size_t> above(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = above;
    above = row;
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j - 1] + (is_same(i - 1, j - 1) ? 0 : 1), above[j] + 1, row[j - 1] + 1});
      const bool is_exchanged = i > 1 && j > 1 && is_same(i - 1, j - 2) && is_same(i - 2, j - 1);
      if (is_exchanged) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace

size_t Utf8Length(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xC2 && lead <= 0xDF   ? 2
                      : (lead & 0xF0) == 0xE0        ? 3
                      : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                     : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if (!IsContinuation(text[i])) return 0;
  }
  if (lead == 0xE0 && at(1) < 0xA0) return 0;
  if (lead == 0xED && at(1) > 0x9F) return 0;
  if (lead == 0xF0 && at(1) < 0x90) return 0;
  if (lead == 0xF4 && at(1) > 0x8F) return 0;
  return size;
}

std::string Quote(std::string_view text, const std::function<void(char, std::string&)>& control) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t size = Utf8Length(text);
    const char c = text[0];
    if (size == 0) {
      out += kReplacement;
    } else if (size > 1) {
      out += text.substr(0, size);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      control(c, out);
    } else {
      out += c;
    }
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  out += '"';
  return out;
}

std::string QuoteText(std::string_view text) {
  return Quote(text, [](char c, std::string& out) {
    constexpr std::string_view kShort = "\t\n\r";
    const size_t at = kShort.find(c);
    out += at == std::string_view::npos ? fmt::format("\\u{:04X}", static_cast<unsigned>(static_cast<uint8_t>(c)))
                                        : std::string{'\\', "tnr"[at]};
  });
}

std::string Excerpt(std::string_view text) {
  if (text.size() <= kExcerptBytes) return QuoteText(text);
  return QuoteText(text.substr(0, CutPoint(text, kExcerptBytes))) + "...";
}

std::string Shorten(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  return std::string(text.substr(0, CutPoint(text, bytes))) + "...";
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t size = Utf8Length(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.empty() || word.size() > kLongestGuess) return {};
  std::string_view best;
  size_t best_distance = 0;
  for (const std::string_view candidate : candidates) {
    const size_t distance = EditDistance(word, candidate);
    if (distance > std::max<size_t>(1, std::min(word.size(), candidate.size()) / 3)) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string_view>& candidates) {
  const std::string_view guess = Nearest(word, candidates);
  return guess.empty() ? std::string() : fmt::format("; did you mean {}?", guess);
}

std::string Grouped(int64_t number) {
  std::string digits = std::to_string(number);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

}  // namespace tessera
