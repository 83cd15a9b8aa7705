// JSON text to a document, through nlohmann-json's event interface: it gives places for syntax errors and lets
// repeated keys and deep nesting be refused, which the library's own tree does not.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/spelling.h"
#include "io/document.h"
#include "io/limits.h"

namespace tessera {
namespace {

using Kind = DocumentValue::Kind;
constexpr size_t kMaxMessageBytes = 200;  // the library quotes what it read last, however long

class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override {
    DocumentValue value;
    value.kind = Kind::kOther;
    value.text = "null";
    return Put(std::move(value));
  }
  bool boolean(bool given) override {
    DocumentValue value;
    value.kind = Kind::kBool;
    value.boolean = given;
    return Put(std::move(value));
  }
  bool number_integer(number_integer_t given) override {
    DocumentValue value;
    value.kind = Kind::kInteger;
    value.integer = given;
    return Put(std::move(value));
  }
  bool number_unsigned(number_unsigned_t given) override {
    if (given <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return number_integer(static_cast<int64_t>(given));
    }
    return Real(static_cast<double>(given), fmt::format("{}", given));
  }
  bool number_float(number_float_t given, const string_t& source) override { return Real(given, source); }
  bool string(string_t& given) override {
    DocumentValue value;
    value.kind = Kind::kString;
    value.text = std::move(given);
    return Put(std::move(value));
  }
  bool binary(binary_t&) override { return Refuse("binary values are not JSON"); }
  bool start_object(std::size_t) override { return Open(Kind::kTable); }
  bool start_array(std::size_t) override { return Open(Kind::kArray); }
  bool key(string_t& given) override {
    open_.back()->keys.push_back(std::move(given));
    return true;
  }
  bool end_object() override {
    std::vector<std::string> sorted = open_.back()->keys;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) return Refuse(fmt::format("the key {} is given twice", Excerpt(*twice)));
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& exception) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: what": keep place and what.
    const std::string_view full = exception.what();
    constexpr std::string_view kAt = " at line ";
    const size_t at = full.find(kAt);
    const size_t colon = at == std::string_view::npos ? at : full.find(": ", at);
    if (colon == std::string_view::npos) {
      const size_t bracket = full.find("] ");
      return Refuse(bracket == std::string_view::npos ? full : full.substr(bracket + 2));
    }
    where_ = std::string(full.substr(at + 4, colon - at - 4));
    return Refuse(full.substr(colon + 2));
  }

  DocumentValue& root() { return root_; }
  const std::string& problem() const { return problem_; }
  const std::string& where() const { return where_; }

 private:
  bool Real(double given, std::string source) {
    DocumentValue value;
    value.kind = Kind::kReal;
    value.real = given;
    value.text = std::move(source);
    return Put(std::move(value));
  }
  bool Open(Kind kind) {
    if (open_.size() >= kMaxJsonNesting)
      return Refuse(fmt::format("values are nested deeper than {}", kMaxJsonNesting));
    DocumentValue value;
    value.kind = kind;
    Put(std::move(value));
    // A parent takes no further item while its child is open, so the pointer stays good.
    open_.push_back(open_.empty() ? &root_ : &open_.back()->items.back());
    return true;
  }
  bool Put(DocumentValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      open_.back()->items.push_back(std::move(value));
    }
    return true;
  }
  bool Refuse(std::string_view problem) {
    problem_ = Shorten(problem, kMaxMessageBytes);
    return false;
  }

  DocumentValue root_;
  std::vector<DocumentValue*> open_;
  std::string problem_;
  std::string where_;
};

}  // namespace

Result<DocumentValue> ParseJsonDocument(std::string_view text) {
  if (!IsUtf8(text)) return Fail(ErrorCode::kContractSyntax, "the text is not valid UTF-8");
  TreeBuilder builder;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return Fail(ErrorCode::kContractSyntax, fmt::format("not well-formed JSON: {}", builder.problem()),
                builder.where());
  }
  return std::move(builder.root());
}

}  // namespace tessera
