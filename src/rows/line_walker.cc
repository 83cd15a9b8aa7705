// See line_walker.h.
#include "rows/line_walker.h"

#include "io/limits.h"

#ifdef TESSERA_HAS_SIMDJSON
#include <simdjson.h>
#endif

namespace tessera::rows {

#ifdef TESSERA_HAS_SIMDJSON

namespace {

static_assert(kLinePadding >= simdjson::SIMDJSON_PADDING);
constexpr size_t kFirstCapacity = size_t{1} << 20;

bool WalkElement(simdjson::dom::element element, DocumentHandler& handler) {
  using Type = simdjson::dom::element_type;
  switch (element.type()) {
    case Type::INT64:
      return handler.OnInteger(element.get_int64().value_unsafe());
    case Type::UINT64:
      return handler.OnOther("a number above int64");
    case Type::DOUBLE:
      return handler.OnOther("a fraction");
    case Type::BOOL:
      return handler.OnOther("a boolean");
    case Type::NULL_VALUE:
      return handler.OnOther("null");
    case Type::STRING:
      return handler.OnText(element.get_string().value_unsafe());
    case Type::ARRAY: {
      if (!handler.OnArrayBegin()) return false;
      const simdjson::dom::array items = element.get_array().value_unsafe();
      for (const simdjson::dom::element item : items) {
        if (!WalkElement(item, handler)) return false;
      }
      return handler.OnArrayEnd();
    }
    case Type::OBJECT: {
      if (!handler.OnObjectBegin()) return false;
      const simdjson::dom::object members = element.get_object().value_unsafe();
      for (const simdjson::dom::key_value_pair member : members) {
        if (!handler.OnKey(member.key) || !WalkElement(member.value, handler)) return false;
      }
      return handler.OnObjectEnd();
    }
  }
  return false;
}

}  // namespace

struct LineWalker::State {
  simdjson::dom::parser parser;
};

LineWalker::LineWalker() : state_(std::make_unique<State>()) {
  // Memory that cannot be had is reported when a line is parsed.
  [[maybe_unused]] const auto error = state_->parser.allocate(kFirstCapacity, size_t{kMaxJsonNesting});
}

std::string LineWalker::Walk(std::string_view line, DocumentHandler& handler) {
  handler.Begin();
  simdjson::dom::element document;
  const auto error = state_->parser.parse(line.data(), line.size(), false).get(document);
  if (error != simdjson::SUCCESS) return simdjson::error_message(error);
  return WalkElement(document, handler) ? std::string() : handler.refusal();
}

std::string_view LineWalkerName() { return "simdjson"; }

#else

struct LineWalker::State {};

LineWalker::LineWalker() = default;

std::string LineWalker::Walk(std::string_view line, DocumentHandler& handler) {
  handler.Begin();
  return WalkJson(line, kMaxJsonNesting, handler);
}

std::string_view LineWalkerName() { return "nlohmann-json"; }

#endif

LineWalker::~LineWalker() = default;

}  // namespace tessera::rows
