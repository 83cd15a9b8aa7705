// The text side of errors: everything a person reads of one comes from the catalogue and from here.
#include "tessera/error.h"

#include <array>
#include <utility>

namespace tessera {
namespace {

struct CodeRow {
  std::string_view text;
  std::string_view meaning;
};

constexpr auto kCodes = std::to_array<CodeRow>({
#define TESSERA_ERROR(name, text, meaning) {text, meaning},
#include "tessera/error_codes.def"
#undef TESSERA_ERROR
});

// A code can arrive as a cast integer, so it is not trusted to be in range.
CodeRow RowOf(ErrorCode code) {
  const auto index = static_cast<size_t>(code);
  return index < kCodes.size() ? kCodes[index] : CodeRow{"TSR-????", "not a Tessera error code"};
}

}  // namespace

Error::Error() = default;
Error::Error(ErrorCode error_code, std::string text, std::string place, std::vector<Violation> broken)
    : code(error_code), message(std::move(text)), where(std::move(place)), violations(std::move(broken)) {}
Error::Error(const Error&) = default;
Error::Error(Error&&) noexcept = default;
Error& Error::operator=(const Error&) = default;
Error& Error::operator=(Error&&) noexcept = default;
Error::~Error() = default;

std::string_view CodeText(ErrorCode code) { return RowOf(code).text; }

std::string_view CodeMeaning(ErrorCode code) { return RowOf(code).meaning; }

std::string ToText(const Error& error) {
  std::string text(CodeText(error.code));
  if (!error.where.empty()) text += " at " + error.where;
  text += ": ";
  text += error.message.empty() ? std::string(CodeMeaning(error.code)) : error.message;
  for (const Violation& violation : error.violations) text += "\n  " + violation.field + ": " + violation.expected;
  return text;
}

tl::unexpected<Error> Fail(ErrorCode code, std::string message, std::string where) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(where), {}});
}

tl::unexpected<Error> Fail(ErrorCode code, std::vector<Violation> violations, std::string where) {
  return tl::unexpected<Error>(Error{code, std::string(CodeMeaning(code)), std::move(where), std::move(violations)});
}

}  // namespace tessera
