// Helpers for error messages and canonical text: quoting what a user wrote (what was meant: tessera/spelling.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/spelling.h"

namespace tessera {

// A string literal: quotes and backslashes escaped, bytes that are not UTF-8 replaced by U+FFFD, and each control
// character written by `control`, in the way of the language at hand.
std::string Quote(std::string_view text, const std::function<void(char, std::string&)>& control);

// A string literal that TOML and JSON both read: "a \"b\"\n". Bytes that are not UTF-8 become U+FFFD.
std::string QuoteText(std::string_view text);

std::string Grouped(int64_t number);  // 1234567 -> "1,234,567"

// What a user wrote, for a message: quoted, printable, cut when long.
std::string Excerpt(std::string_view text);

// At most `bytes` of UTF-8 text, cut between characters, with "..." when something was left out.
std::string Shorten(std::string_view text, size_t bytes);

bool IsUtf8(std::string_view text);
// Bytes of the UTF-8 character that a text, not empty, begins with; 0 when it begins with none (overlong forms and
// surrogates included).
size_t Utf8Length(std::string_view text);

}  // namespace tessera
