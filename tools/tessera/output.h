// What the program prints: every byte to standard output and standard error goes through here, and reaches a terminal
// as text, whatever the files that it came from hold.
#pragma once

#include <string>
#include <string_view>

#include "tessera/error.h"

namespace tessera::program {

// For main, before anything else. A standard stream that is closed would give its number to the next file that is
// opened, and what is printed would end up there; a write that cannot be done is an error to report, not a signal.
void GuardStreams();

// Characters that a terminal acts on (all controls but newline and tab, and those that turn the direction of text or
// break lines) become \u001b and the like, bytes that are not UTF-8 \ufffd: in text and inside of JSON's strings alike.
std::string Printable(std::string_view text);
// The same for a value inside of a line, which must not begin another.
std::string OneLine(std::string_view text);

// Writes to standard output; a full disk is an error like any other, which FlushOutput gives at the end.
void Print(std::string_view text);
Status FlushOutput();
// For people: standard error.
void PrintError(std::string_view text);

// Colour is for a terminal, and not where NO_COLOR is set or TERM is "dumb". It never says what the words do not.
enum class Colour { kBad, kGood, kNote };
// A word in colour and the rest of the line: "tessera:" and " TSR-R007 ...".
void PrintError(Colour colour, std::string_view word, std::string_view rest);
// A tile map and text around it: full, partial and skipped tiles in colours.
void PrintMap(std::string_view text);
// One line for people: standard output, or standard error when standard output carries JSON.
void Say(bool json, std::string_view text);
void Say(bool json, Colour colour, std::string_view word, std::string_view rest);

}  // namespace tessera::program
