#include "lanes/bridge/request.h"

#include <fmt/format.h>

#include <utility>

#include "base/try.h"
#include "lanes/bridge/splash.h"

namespace tessera::lanes::bridge {
namespace {

constexpr const char* kLane = "call_jax";

}  // namespace

Result<DocumentValue> Ask(const Interpreter& interpreter, std::string_view request) {
  const std::string answer = TESSERA_TRY(interpreter.Call(request));
  auto tree = ReadJsonTree(answer, {.max_depth = 8, .max_values = 1 << 16});
  if (!tree) return Fail(ErrorCode::kBridgeFailed, "the bridge's answer is no JSON: " + tree.error(), kLane);
  const DocumentValue* error = tree->Find("error");
  if (error == nullptr) return std::move(*tree);
  const bool is_memory = error->text.find("RESOURCE_EXHAUSTED") != std::string::npos ||
                         error->text.find("MemoryError") != std::string::npos;
  return Fail(is_memory ? ErrorCode::kTooLarge : ErrorCode::kBridgeFailed, error->text, kLane);
}

int64_t NumberOf(const DocumentValue& table, const char* key) {
  const DocumentValue* value = table.Find(key);
  return value == nullptr ? 0 : value->integer;
}

std::string TextOf(const DocumentValue& table, const char* key) {
  const DocumentValue* value = table.Find(key);
  return value == nullptr ? std::string() : value->text;
}

Error Refusal(const Decision& decision) {
  const std::string text =
      fmt::format("{} ({}; {})", ReasonText(decision.reason), ReasonMeaning(decision.reason), decision.detail);
  return {ErrorCode::kLaneRefused, text, kLane, {}};
}

Result<SplashAnswer> AskSplash(const std::string& python) {
  const OpenedInterpreter opened = OpenInterpreter(python);
  if (opened.interpreter == nullptr) return tl::unexpected(Refusal(opened.decision));
  const DocumentValue answer = TESSERA_TRY(Ask(*opened.interpreter, R"({"request": "splash"})"));
  const DocumentValue* difference = answer.Find("difference");
  const DocumentValue* has_nan = answer.Find("has_nan");
  if (difference == nullptr || has_nan == nullptr) {
    return tl::unexpected(Error{ErrorCode::kBridgeFailed, "the bridge's answer has no difference", kLane, {}});
  }
  const bool is_real = difference->kind == DocumentValue::Kind::kReal;
  return SplashAnswer{.use = opened.interpreter->use(),
                      .difference = is_real ? difference->real : static_cast<double>(difference->integer),
                      .has_nan = has_nan->boolean,
                      .ns = NumberOf(answer, "ns")};
}

}  // namespace tessera::lanes::bridge
