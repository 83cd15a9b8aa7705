// Errors, strings and versions of the C interface.
#include <cstdlib>
#include <cstring>

#include "capi/handles.h"
#include "tessera/version.h"

namespace tessera::capi {
namespace {

// Made before memory can run out, never freed.
tessera_error& NoMemory() {
  static tessera_error error{"TSR-R009",
                             std::string(CodeMeaning(ErrorCode::kTooLarge)),
                             {ErrorCode::kTooLarge, "not enough memory for this call", "memory", {}},
                             "TSR-R009 at memory: not enough memory for this call"};
  return error;
}
[[maybe_unused]] const tessera_error& made_at_load = NoMemory();

}  // namespace

void ReportNoMemory(tessera_error** out) noexcept {
  if (out != nullptr) *out = &NoMemory();
}

void Report(tessera_error** out, const Error& error) noexcept {
  if (out == nullptr) return;
  try {
    *out = new tessera_error{std::string(CodeText(error.code)), std::string(CodeMeaning(error.code)), error,
                             ToText(error)};
  } catch (...) {
    ReportNoMemory(out);
  }
}

void ReportDefect(tessera_error** out, std::string_view where, const char* what) noexcept {
  try {
    const std::string message = std::string("an exception reached the C interface, a defect in Tessera: ") + what;
    Report(out, {ErrorCode::kStageInvariant, message, std::string(where), {}});
  } catch (...) {
    ReportNoMemory(out);
  }
}

char* CopyText(std::string_view text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

}  // namespace tessera::capi

const char* tessera_version(void) { return TESSERA_VERSION; }
int64_t tessera_abi_version(void) { return TESSERA_ABI_VERSION; }
void tessera_string_free(char* text) { std::free(text); }

const char* tessera_error_code(const tessera_error* error) { return error == nullptr ? "" : error->code.c_str(); }
const char* tessera_error_meaning(const tessera_error* error) { return error == nullptr ? "" : error->meaning.c_str(); }
const char* tessera_error_message(const tessera_error* error) {
  return error == nullptr ? "" : error->error.message.c_str();
}
const char* tessera_error_where(const tessera_error* error) {
  return error == nullptr ? "" : error->error.where.c_str();
}
const char* tessera_error_text(const tessera_error* error) { return error == nullptr ? "" : error->text.c_str(); }

size_t tessera_error_num_violations(const tessera_error* error) {
  return error == nullptr ? 0 : error->error.violations.size();
}
const char* tessera_error_violation_field(const tessera_error* error, size_t index) {
  return index < tessera_error_num_violations(error) ? error->error.violations[index].field.c_str() : "";
}
const char* tessera_error_violation_expected(const tessera_error* error, size_t index) {
  return index < tessera_error_num_violations(error) ? error->error.violations[index].expected.c_str() : "";
}

void tessera_error_free(tessera_error* error) {
  if (error != &tessera::capi::NoMemory()) delete error;
}
