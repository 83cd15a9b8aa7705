// Errors as values. The library never throws, prints or aborts across a public header: what can fail
// returns Result<T>, and an Error says what is wrong, where, and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#pragma GCC visibility push(default)
namespace tessera {

enum class ErrorCode : uint16_t {
#define TESSERA_ERROR(name, text, meaning) name,
#include "tessera/error_codes.def"
#undef TESSERA_ERROR
};

// One broken rule: which field, and what was expected of it.
struct Violation {
  std::string field;
  std::string expected;
  bool operator==(const Violation&) const = default;
};

struct Error {
  ErrorCode code = ErrorCode::kBadArgument;
  std::string message;                // one sentence: what is wrong and what was expected
  std::string where;                  // file, field, stage or byte offset; may be empty
  std::vector<Violation> violations;  // every violation, for validation errors

  // Written out and defined in the library: every function that returns a Result uses them, and inlined they are a good
  // part of what a user of these headers compiles.
  Error();
  Error(ErrorCode error_code, std::string text, std::string place = {}, std::vector<Violation> broken = {});
  Error(const Error&);
  Error(Error&&) noexcept;
  Error& operator=(const Error&);
  Error& operator=(Error&&) noexcept;
  ~Error();
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

// "TSR-C003".
std::string_view CodeText(ErrorCode code);
// The catalogue's sentence for a code.
std::string_view CodeMeaning(ErrorCode code);
// "TSR-C003 at contract.toml: ... " with one indented line per violation.
std::string ToText(const Error& error);

// `return Fail(code, message, where);` inside any function returning Result<T>.
tl::unexpected<Error> Fail(ErrorCode code, std::string message, std::string where = {});
tl::unexpected<Error> Fail(ErrorCode code, std::vector<Violation> violations, std::string where = {});

}  // namespace tessera
#pragma GCC visibility pop
