// See output.h.
#include "output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
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

void Write(std::FILE* stream, std::string_view text) {
  const std::string made = IsPlain(text) ? std::string() : Printable(text);
  const std::string_view shown = made.empty() ? text : made;
  errno = 0;
  const bool is_written = std::fwrite(shown.data(), 1, shown.size(), stream) == shown.size();
  if (!is_written && stream == stdout && OutputError() == 0) OutputError() = errno == 0 ? EIO : errno;
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

void Say(bool json, std::string_view text) {
  Write(json ? stderr : stdout, text);
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
