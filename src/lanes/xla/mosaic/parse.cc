// See parse.h.
#include "lanes/xla/mosaic/parse.h"

#include <fmt/format.h>

#include <string>
#include <unordered_map>

#include "lanes/xla/mosaic/scanner.h"

namespace tessera::mosaic {
namespace {

constexpr std::string_view kPrefix = "stable_mosaic.";
constexpr int kMostNesting = 24;  // of regions
constexpr int64_t kMostResults = 256;

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}

  Result<Module> Run() {
    Module module;
    in_.Expect("\"builtin.module\"()");
    in_.Expect("({");
    while (in_.ok() && !in_.Take("})")) module.functions.push_back(OneFunction());
    const Attributes attributes = in_.Dictionary();
    const Attribute* version = Find(attributes, fmt::format("{}version", kPrefix));
    if (in_.ok() && (version == nullptr || version->kind != AttributeKind::kInteger || attributes.size() != 1)) {
      in_.Fail("expected the module's version and nothing else");
    }
    in_.Expect(":");
    in_.Expect("()");
    in_.Expect("->");
    in_.Expect("()");
    if (in_.ok() && !in_.AtEnd()) in_.Fail("expected the end of the text");
    if (in_.ok() && module.functions.empty()) in_.Fail("expected a kernel");
    if (!in_.ok()) return tl::unexpected(in_.error());
    module.version = version->integer;
    return module;
  }

 private:
  Function OneFunction() {
    function_ = {};
    names_.clear();
    in_.Expect(fmt::format("\"{}func.func\"()", kPrefix));
    in_.Expect("({");
    function_.body = OneRegion();
    in_.Expect(")");
    function_.attributes = in_.Dictionary();
    in_.Expect(":");
    in_.Expect("()");
    in_.Expect("->");
    in_.Expect("()");
    return std::move(function_);
  }

  void Define(std::string name, const Type& type, std::vector<ValueId>& to) {
    const auto id = static_cast<ValueId>(function_.values.size());
    if (!names_.emplace(name, id).second) in_.Fail(fmt::format("%{} is defined twice", name));
    defined_.push_back(name);
    function_.values.push_back({type, std::move(name)});
    to.push_back(id);
  }

  // After its opening brace, to its closing one.
  Region OneRegion() {
    Region region;
    if (++nesting_ > kMostNesting) in_.Fail("regions nest too deep");
    const size_t begin = defined_.size();
    if (in_.Take("^")) {
      in_.Name();
      in_.Expect("(");
      do {
        in_.Expect("%");
        std::string name(in_.Name());
        in_.Expect(":");
        Define(std::move(name), in_.OneType(), region.arguments);
      } while (in_.Take(","));
      in_.Expect(")");
      in_.Expect(":");
    }
    while (in_.ok() && !in_.Take("}")) region.ops.push_back(OneOp());
    // What a region defined ends with it.
    for (size_t at = begin; at < defined_.size(); ++at) names_.erase(defined_[at]);
    defined_.resize(begin);
    --nesting_;
    return region;
  }

  Op OneOp() {
    Op op;
    std::string name;
    int64_t num_results = 0;
    if (in_.Take("%")) {
      name = in_.Name();
      num_results = in_.Take(":") ? in_.Integer() : 1;
      if (num_results < 1 || num_results > kMostResults) in_.Fail("expected a number of results");
      in_.Expect("=");
    }
    std::string_view text = in_.Quoted();
    if (in_.ok() && !text.starts_with(kPrefix)) in_.Fail(fmt::format("{} has no prefix {}", text, kPrefix));
    if (!in_.ok()) return op;
    text.remove_prefix(kPrefix.size());
    const std::optional<OpCode> code = FindOp(text);
    if (!code) {
      in_.Fail(fmt::format("{} is no operation we know", text));
      return op;
    }
    op.code = *code;
    Operands(op);
    if (in_.Take("(")) {
      do {
        in_.Expect("{");
        op.regions.push_back(OneRegion());
      } while (in_.Take(","));
      in_.Expect(")");
    }
    if (in_.Peek("{")) op.attributes = in_.Dictionary();
    in_.Expect(":");
    CheckTypes(op, in_.Types());
    in_.Expect("->");
    const std::vector<Type> types = in_.ResultTypes();
    if (in_.ok() && static_cast<int64_t>(types.size()) != num_results) in_.Fail("expected a type for each result");
    for (int64_t at = 0; in_.ok() && at < num_results; ++at) {
      Define(num_results == 1 ? name : fmt::format("{}#{}", name, at), types[static_cast<size_t>(at)], op.results);
    }
    return op;
  }

  void Operands(Op& op) {
    in_.Expect("(");
    if (in_.Take(")")) return;
    do {
      in_.Expect("%");
      const std::string name(in_.Name());
      const auto it = names_.find(name);
      if (it == names_.end()) {
        in_.Fail(fmt::format("%{} is not defined here", name));
        return;
      }
      op.operands.push_back(it->second);
    } while (in_.Take(","));
    in_.Expect(")");
  }

  void CheckTypes(const Op& op, const std::vector<Type>& types) {
    if (!in_.ok()) return;
    if (types.size() != op.operands.size()) {
      in_.Fail("expected a type for each operand");
      return;
    }
    for (size_t at = 0; at < types.size(); ++at) {
      const Type& own = function_.TypeOf(op.operands[at]);
      if (types[at] != own) in_.Fail(fmt::format("operand {} is {} where it is defined", at, ToText(own)));
    }
  }

  Scanner in_;
  Function function_;
  std::unordered_map<std::string, ValueId> names_;
  std::vector<std::string> defined_;  // in the regions that are open, outermost first
  int nesting_ = 0;
};

}  // namespace

Result<Module> Parse(std::string_view text) {
  if (text.size() > kMostKernelText) {
    return Fail(ErrorCode::kKernelText,
                fmt::format("{} bytes of text, and at most {} are read", text.size(), kMostKernelText));
  }
  return Parser(text).Run();
}

}  // namespace tessera::mosaic
