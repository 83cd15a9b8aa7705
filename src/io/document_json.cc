// JSON text to a document: the tree of what the one event reader gives.
#include <fmt/format.h>

#include <utility>

#include "base/spelling.h"
#include "io/document.h"
#include "io/json_events.h"
#include "io/limits.h"

namespace tessera {
namespace {

using Kind = DocumentValue::Kind;

class TreeBuilder : public JsonHandler {
 public:
  explicit TreeBuilder(int64_t max_values) : max_values_(max_values) {}
  DocumentValue Take() { return std::move(root_); }

  bool OnInteger(int64_t given) override {
    DocumentValue value;
    value.kind = Kind::kInteger;
    value.integer = given;
    return Put(std::move(value));
  }
  bool OnText(std::string_view given) override {
    DocumentValue value;
    value.kind = Kind::kString;
    value.text = given;
    return Put(std::move(value));
  }
  bool OnReal(double given, std::string_view source) override {
    DocumentValue value;
    value.kind = Kind::kReal;
    value.real = given;
    value.text = source;
    return Put(std::move(value));
  }
  bool OnBool(bool given) override {
    DocumentValue value;
    value.kind = Kind::kBool;
    value.boolean = given;
    return Put(std::move(value));
  }
  bool OnOther(std::string_view what) override {
    DocumentValue value;
    value.kind = Kind::kOther;
    value.text = what;
    return Put(std::move(value));
  }
  bool OnKey(std::string_view key) override {
    open_.back()->keys.emplace_back(key);
    return true;
  }
  bool OnObjectBegin() override { return Open(Kind::kTable); }
  bool OnObjectEnd() override { return Close(); }
  bool OnArrayBegin() override { return Open(Kind::kArray); }
  bool OnArrayEnd() override { return Close(); }

 private:
  bool Open(Kind kind) {
    DocumentValue value;
    value.kind = kind;
    if (!Put(std::move(value))) return false;
    // A parent takes no further item while its child is open, so the pointer stays good.
    open_.push_back(open_.empty() ? &root_ : &open_.back()->items.back());
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Put(DocumentValue value) {
    if (++values_ > max_values_) return Refuse(fmt::format("it has more than {} values", max_values_));
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      open_.back()->items.push_back(std::move(value));
    }
    return true;
  }

  int64_t max_values_;
  int64_t values_ = 0;
  DocumentValue root_;
  std::vector<DocumentValue*> open_;
};

}  // namespace

tl::expected<DocumentValue, std::string> ReadJsonTree(std::string_view text, const JsonLimits& limits) {
  TreeBuilder builder(limits.max_values);
  if (std::string problem = WalkJson(text, limits.max_depth, builder); !problem.empty())
    return tl::unexpected(std::move(problem));
  return builder.Take();
}

Result<DocumentValue> ParseJsonDocument(std::string_view text) {
  if (!IsUtf8(text)) return Fail(ErrorCode::kContractSyntax, "the text is not valid UTF-8");
  auto tree = ReadJsonTree(text, {.max_depth = kMaxJsonNesting});
  if (tree) return std::move(*tree);
  // "parse error at line 1, column 5: what": the place goes where places of errors go.
  std::string_view what = tree.error();
  std::string where;
  constexpr std::string_view kAt = "parse error at ";
  if (const size_t colon = what.find(": "); what.starts_with(kAt) && colon != std::string_view::npos) {
    where = what.substr(kAt.size(), colon - kAt.size());
    what.remove_prefix(colon + 2);
  }
  return Fail(ErrorCode::kContractSyntax, fmt::format("not well-formed JSON: {}", what), where);
}

}  // namespace tessera
