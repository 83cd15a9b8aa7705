// See output.h.
#include "output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

namespace tessera::program {
namespace {

struct Character {
  size_t bytes = 0;  // 0: what is there is not UTF-8
  uint32_t code = 0;
};

Character FirstOf(std::string_view text) {
  const auto byte = [&](size_t i) { return uint32_t{static_cast<unsigned char>(text[i])}; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {1, lead};
  const size_t bytes = lead >= 0xC2 && lead <= 0xDF   ? 2
                       : (lead & 0xF0) == 0xE0        ? 3
                       : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                      : 0;
  if (bytes == 0 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return {bytes, code};
}

bool IsActive(uint32_t code) {
  if (code < 0x20) return code != '\n' && code != '\t';
  if (code >= 0x7F && code <= 0x9F) return true;
  const auto is_in = [&](uint32_t low, uint32_t high) { return code >= low && code <= high; };
  // Marks and embeddings of direction, separators of lines, a byte order mark.
  return code == 0x061C || is_in(0x200E, 0x200F) || is_in(0x2028, 0x202E) || is_in(0x2066, 0x2069) || code == 0xFEFF;
}

bool IsPlain(std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n') || byte >= 0x7F) return false;
  }
  return true;
}

int& OutputError() {
  static int error = 0;
  return error;
}

// As it is: what came out of files has been made Printable by then.
void WriteRaw(std::FILE* stream, std::string_view text) {
  errno = 0;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if (!is_written && stream == stdout && OutputError() == 0) OutputError() = errno == 0 ? EIO : errno;
}

void Write(std::FILE* stream, std::string_view text) {
  const std::string made = IsPlain(text) ? std::string() : Printable(text);
  WriteRaw(stream, made.empty() ? text : made);
}

bool HasColour(std::FILE* stream) {
  const char* refused = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  if (refused != nullptr && *refused != '\0') return false;
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return ::isatty(::fileno(stream)) != 0;
}

constexpr std::string_view kPlainAgain = "\033[0m";

std::string_view CodeOf(Colour colour) {
  switch (colour) {
    case Colour::kBad:
      return "\033[1;31m";
    case Colour::kGood:
      return "\033[32m";
    case Colour::kNote:
      return "\033[33m";
  }
  return kPlainAgain;
}

void WriteColoured(std::FILE* stream, Colour colour, std::string_view word, std::string_view rest) {
  const bool has_colour = HasColour(stream);
  if (has_colour) WriteRaw(stream, CodeOf(colour));
  Write(stream, word);
  if (has_colour) WriteRaw(stream, kPlainAgain);
  Write(stream, rest);
}

// The map's glyphs in runs, each run in its colour.
std::string InColours(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kGlyphs = {
      {{"█", "\033[34m"}, {"▓", "\033[36m"}, {"▒", "\033[36m"}, {"░", "\033[36m"}, {"·", "\033[2m"}}};
  std::string out;
  std::string_view now;
  while (!text.empty()) {
    std::string_view colour;
    size_t size = 1;
    for (const auto& [glyph, code] : kGlyphs) {
      if (text.substr(0, glyph.size()) != glyph) continue;
      colour = code;
      size = glyph.size();
    }
    if (colour != now) {
      if (!now.empty()) out += kPlainAgain;
      out += colour;
      now = colour;
    }
    out += text.substr(0, size);
    text.remove_prefix(size);
  }
  return now.empty() ? out : out + std::string(kPlainAgain);
}

}  // namespace

void GuardStreams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // Opened the wrong way round, so that whoever reads or writes still hears of it.
  for (const auto& [fd, flags] :
       {std::pair{STDIN_FILENO, O_WRONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_RDONLY}}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    const int opened = ::open("/dev/null", flags);
    if (opened >= 0 && opened != fd) ::close(opened);
  }
}

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character first = FirstOf(text);
    if (first.bytes == 0) {
      out += "\\ufffd";
    } else if (IsActive(first.code)) {
      out += fmt::format("\\u{:04x}", first.code);
    } else {
      out += text.substr(0, first.bytes);
    }
    text.remove_prefix(first.bytes == 0 ? 1 : first.bytes);
  }
  return out;
}

std::string OneLine(std::string_view text) {
  std::string out = Printable(text);
  for (size_t at = out.find('\n'); at != std::string::npos; at = out.find('\n', at)) out.replace(at, 1, "\\n");
  return out;
}

void Print(std::string_view text) { Write(stdout, text); }
void PrintError(std::string_view text) { Write(stderr, text); }
void PrintError(Colour colour, std::string_view word, std::string_view rest) {
  WriteColoured(stderr, colour, word, rest);
}

void PrintMap(std::string_view text) {
  if (HasColour(stdout)) return WriteRaw(stdout, InColours(Printable(text)));
  Write(stdout, text);
}

void Say(bool json, std::string_view text) {
  Write(json ? stderr : stdout, text);
  Write(json ? stderr : stdout, "\n");
}

void Say(bool json, Colour colour, std::string_view word, std::string_view rest) {
  WriteColoured(json ? stderr : stdout, colour, word, rest);
  Write(json ? stderr : stdout, "\n");
}

Status FlushOutput() {
  errno = 0;
  const bool is_flushed = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!is_flushed && OutputError() == 0) OutputError() = errno == 0 ? EIO : errno;
  if (OutputError() == 0) return {};
  return Fail(ErrorCode::kFileWrite, fmt::format("cannot write: {}", std::generic_category().message(OutputError())),
              "standard output");
}

}  // namespace tessera::program
