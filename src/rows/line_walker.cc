// See line_walker.h.
#include "rows/line_walker.h"

#include <algorithm>

#include "io/limits.h"

#ifdef TESSERA_HAS_SIMDJSON
#include <simdjson.h>
#endif

namespace tessera::rows {

#ifdef TESSERA_HAS_SIMDJSON

namespace {

static_assert(kLinePadding >= simdjson::SIMDJSON_PADDING);
constexpr size_t kFirstCapacity = size_t{1} << 20;

namespace ondemand = simdjson::ondemand;

// Whether the text is a number of JSON, whatever its size.
bool IsNumber(std::string_view text) {
  const auto digits = [&] {
    const size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count;
  };
  const auto take = [&](std::string_view letters) {
    const bool is_there = !text.empty() && letters.find(text.front()) != std::string_view::npos;
    if (is_there) text.remove_prefix(1);
    return is_there;
  };
  take("-");
  const bool is_zero = text.starts_with('0');
  const size_t whole = digits();
  if (whole == 0 || (is_zero && whole > 1)) return false;
  if (take(".") && digits() == 0) return false;
  if (take("eE")) {
    take("+-");
    if (digits() == 0) return false;
  }
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// One walk over the text, in order: no tree is built. Everything is looked at, what the handler has no use for too, so
// that a line is JSON or is refused.
class Walker {
 public:
  explicit Walker(DocumentHandler& handler) : handler_(handler) {}
  simdjson::error_code error() const { return error_; }

  bool Document(ondemand::document& document) {
    ondemand::json_type type{};
    ondemand::object object;
    if (!Good(document.type().get(type))) return false;
    if (type != ondemand::json_type::object) return handler_.Refuse("a document is a JSON object");
    if (!Good(document.get_object().get(object)) || !Object(object, 1)) return false;
    // At the end there is no place any more.
    return document.current_location().error() == simdjson::OUT_OF_BOUNDS || Good(simdjson::TRAILING_CONTENT);
  }

 private:
  bool Good(simdjson::error_code error) {
    error_ = error;
    return error == simdjson::SUCCESS;
  }

  bool Object(ondemand::object& object, int depth) {
    if (depth > kMaxJsonNesting) return Good(simdjson::DEPTH_ERROR);
    if (!handler_.OnObjectBegin()) return false;
    for (simdjson::simdjson_result<ondemand::field> item : object) {
      ondemand::field field;
      std::string_view key;
      if (!Good(std::move(item).get(field)) || !Good(field.unescaped_key().get(key))) return false;
      if (!handler_.OnKey(key) || !Value(field.value(), depth)) return false;
    }
    return handler_.OnObjectEnd();
  }

  bool Array(ondemand::array& array, int depth) {
    if (depth > kMaxJsonNesting) return Good(simdjson::DEPTH_ERROR);
    if (!handler_.OnArrayBegin()) return false;
    for (simdjson::simdjson_result<ondemand::value> item : array) {
      ondemand::value value;
      if (!Good(std::move(item).get(value))) return false;
      // Nearly every value of a line is a whole number; what is not one stays where it is.
      int64_t number = 0;
      const bool is_good =
          value.get_int64().get(number) == simdjson::SUCCESS ? handler_.OnInteger(number) : Value(value, depth);
      if (!is_good) return false;
    }
    return handler_.OnArrayEnd();
  }

  bool Number(ondemand::value value) {
    ondemand::number number;
    if (value.get_number().get(number) != simdjson::SUCCESS) {
      // One too large for simdjson is a number still.
      const std::string_view text = value.raw_json_token();
      if (!IsNumber(text)) return Good(simdjson::NUMBER_ERROR);
      const bool is_whole = text.find_first_of(".eE") == std::string_view::npos;
      return handler_.OnOther(is_whole ? "a number above int64" : "a fraction");
    }
    switch (number.get_number_type()) {
      case ondemand::number_type::signed_integer:
        return handler_.OnInteger(number.get_int64());
      case ondemand::number_type::unsigned_integer:
        return handler_.OnOther("a number above int64");
      case ondemand::number_type::floating_point_number:
        return handler_.OnOther("a fraction");
      default:  // what later versions may add
        return Good(simdjson::NUMBER_ERROR);
    }
  }

  bool Value(ondemand::value value, int depth) {
    ondemand::json_type type{};
    if (!Good(value.type().get(type))) return false;
    switch (type) {
      case ondemand::json_type::object: {
        ondemand::object object;
        return Good(value.get_object().get(object)) && Object(object, depth + 1);
      }
      case ondemand::json_type::array: {
        ondemand::array array;
        return Good(value.get_array().get(array)) && Array(array, depth + 1);
      }
      case ondemand::json_type::number:
        return Number(value);
      case ondemand::json_type::string: {
        std::string_view text;
        return Good(value.get_string().get(text)) && handler_.OnText(text);
      }
      case ondemand::json_type::boolean: {
        bool is_true = false;
        return Good(value.get_bool().get(is_true)) && handler_.OnOther("a boolean");
      }
      case ondemand::json_type::null: {
        bool is_null = false;  // later versions say more than yes or no
        const auto found = simdjson::simdjson_result<bool>(value.is_null()).get(is_null);
        if (found != simdjson::SUCCESS || !is_null) return Good(simdjson::N_ATOM_ERROR);
        return handler_.OnOther("null");
      }
      default:
        return Good(simdjson::TAPE_ERROR);
    }
  }

  DocumentHandler& handler_;
  simdjson::error_code error_ = simdjson::SUCCESS;
};

}  // namespace

struct LineWalker::State {
  simdjson::ondemand::parser parser;
};

LineWalker::LineWalker() : state_(std::make_unique<State>()) {
  // Memory that cannot be had is reported when a line is parsed.
  [[maybe_unused]] const auto error = state_->parser.allocate(kFirstCapacity, size_t{kMaxJsonNesting});
}

std::string LineWalker::Walk(std::string_view line, DocumentHandler& handler) {
  handler.Begin();
  if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);  // a byte order mark, which a file may begin with
  ondemand::document document;
  Walker walk(handler);
  const simdjson::padded_string_view padded(line.data(), line.size(), line.size() + kLinePadding);
  const auto error = state_->parser.iterate(padded).get(document);
  if (error != simdjson::SUCCESS) return simdjson::error_message(error);
  if (walk.Document(document)) return {};
  return walk.error() != simdjson::SUCCESS ? simdjson::error_message(walk.error()) : handler.refusal();
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
