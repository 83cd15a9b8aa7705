// The bridge from nlohmann-json's event parser to JsonHandler, and the only file that knows that library. Its parser
// keeps its own stack on the heap, so deep nesting cannot overflow ours; the depth limit bounds the heap.
#include "io/json_events.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/spelling.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

class Bridge : public nlohmann::json_sax<Json> {
 public:
  Bridge(int max_depth, JsonHandler* handler) : max_depth_(max_depth), handler_(handler) {}

  const std::string& syntax_error() const { return syntax_error_; }

  bool null() override { return handler_->OnOther("null"); }
  bool boolean(bool value) override { return handler_->OnBool(value); }
  bool number_integer(number_integer_t value) override { return handler_->OnInteger(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max()))
      return handler_->OnReal(static_cast<double>(value), std::to_string(value));
    return handler_->OnInteger(static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t& source) override { return handler_->OnReal(value, source); }
  bool string(string_t& value) override { return handler_->OnText(value); }
  bool binary(binary_t&) override { return handler_->OnOther("binary data"); }

  bool start_object(std::size_t) override {
    if (!Enter()) return false;
    keys_.emplace_back();
    return handler_->OnObjectBegin();
  }
  bool key(string_t& value) override {
    if (!keys_.back().insert(value).second)
      return handler_->Refuse(fmt::format("\"{}\" appears twice", Shorten(value, 80)));
    return handler_->OnKey(value);
  }
  bool end_object() override {
    --depth_;
    keys_.pop_back();
    return handler_->OnObjectEnd();
  }
  bool start_array(std::size_t) override { return Enter() && handler_->OnArrayBegin(); }
  bool end_array() override {
    --depth_;
    return handler_->OnArrayEnd();
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    // The library's text begins with its own error number in brackets, which says nothing to our users.
    const std::string_view what = error.what();
    const size_t bracket = what.find("] ");
    syntax_error_ = Shorten(bracket == std::string_view::npos ? what : what.substr(bracket + 2), 200);
    return false;
  }

 private:
  bool Enter() {
    if (++depth_ > max_depth_) return handler_->Refuse(fmt::format("it is nested deeper than {} levels", max_depth_));
    return true;
  }

  int max_depth_;
  int depth_ = 0;
  JsonHandler* handler_;
  std::vector<std::unordered_set<std::string>> keys_;
  std::string syntax_error_;
};

}  // namespace

std::string WalkJson(std::string_view text, int max_depth, JsonHandler& handler) {
  // The library takes a zero byte for the end of the text, and would leave what follows unread.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    return fmt::format("byte {} is zero, and no JSON has a zero byte", zero);
  Bridge bridge(max_depth, &handler);
  if (Json::sax_parse(text.begin(), text.end(), &bridge)) return {};
  if (!handler.refusal().empty()) return handler.refusal();
  return bridge.syntax_error().empty() ? "it is not valid JSON" : bridge.syntax_error();
}

}  // namespace tessera
