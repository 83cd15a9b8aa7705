// See print.h.
#include "lanes/xla/mosaic/print.h"

#include <fmt/format.h>

namespace tessera::mosaic {
namespace {

constexpr std::string_view kPrefix = "stable_mosaic.";

class Printer {
 public:
  std::string Module(const mosaic::Module& module) {
    text_ = "\"builtin.module\"() ({\n";
    for (const Function& function : module.functions) PrintFunction(function);
    text_ += fmt::format("}}) {{{}version = {} : i64}} : () -> ()\n", kPrefix, module.version);
    return std::move(text_);
  }

  std::string Line(const Function& function, const Op& op) {
    names_.assign(function.values.size(), {});
    function_ = &function;
    for (size_t at = 0; at < names_.size(); ++at) {
      names_[at] = function.values[at].name.empty() ? "v" + std::to_string(at) : function.values[at].name;
    }
    Begin(op, "");
    End(op);
    return std::move(text_);
  }

 private:
  void PrintFunction(const Function& function) {
    function_ = &function;
    names_.assign(function.values.size(), {});
    text_ += fmt::format("  \"{}func.func\"() ({{\n", kPrefix);
    PrintRegion(function.body, "  ");
    text_ += "  })";
    PrintAttributes(function.attributes);
    text_ += " : () -> ()\n";
  }

  // Names are given where a value is defined, so that they ascend in the text; over the whole module, because siblings
  // that share a name are legal and hard to read.
  void NameArgument(ValueId value) {
    const std::string& own = function_->values[static_cast<size_t>(value)].name;
    names_[static_cast<size_t>(value)] = own.empty() ? "arg" + std::to_string(next_argument_++) : own;
  }
  void NameResults(const Op& op) {
    if (op.results.empty()) return;
    const std::string number = std::to_string(next_);
    bool is_used = false;
    for (size_t at = 0; at < op.results.size(); ++at) {
      const auto value = static_cast<size_t>(op.results[at]);
      names_[value] = function_->values[value].name;
      if (!names_[value].empty()) continue;
      is_used = true;
      names_[value] = op.results.size() == 1 ? number : number + "#" + std::to_string(at);
    }
    if (is_used) ++next_;
  }

  void PrintRegion(const Region& region, const std::string& indent) {
    if (!region.arguments.empty()) {
      text_ += indent + "^bb0(";
      for (size_t at = 0; at < region.arguments.size(); ++at) {
        NameArgument(region.arguments[at]);
        if (at > 0) text_ += ", ";
        text_ += Name(region.arguments[at]) + ": " + ToText(function_->TypeOf(region.arguments[at]));
      }
      text_ += "):\n";
    }
    for (const Op& op : region.ops) PrintOp(op, indent + "  ");
  }

  void PrintOp(const Op& op, const std::string& indent) {
    NameResults(op);
    Begin(op, indent);
    for (size_t at = 0; at < op.regions.size(); ++at) {
      text_ += at == 0 ? " ({\n" : ", {\n";
      PrintRegion(op.regions[at], indent);
      text_ += indent + "}";
    }
    if (!op.regions.empty()) text_ += ")";
    End(op);
    text_ += "\n";
  }

  // %0 = "stable_mosaic.arith.addf"(%a, %b)
  void Begin(const Op& op, const std::string& indent) {
    text_ += indent;
    if (op.results.size() == 1) {
      text_ += Name(op.results[0]) + " = ";
    } else if (!op.results.empty()) {
      const std::string first = Name(op.results[0]);
      text_ += fmt::format("{}:{} = ", first.substr(0, first.find('#')), op.results.size());
    }
    text_ += fmt::format("\"{}{}\"(", kPrefix, ToText(op.code));
    for (size_t at = 0; at < op.operands.size(); ++at) {
      if (at > 0) text_ += ", ";
      text_ += Name(op.operands[at]);
    }
    text_ += ")";
  }

  // {attributes} : (types) -> type
  void End(const Op& op) {
    PrintAttributes(op.attributes);
    text_ += " : (";
    for (size_t at = 0; at < op.operands.size(); ++at) {
      if (at > 0) text_ += ", ";
      text_ += ToText(function_->TypeOf(op.operands[at]));
    }
    text_ += ") -> ";
    if (op.results.size() == 1) {
      text_ += ToText(function_->TypeOf(op.results[0]));
      return;
    }
    text_ += "(";
    for (size_t at = 0; at < op.results.size(); ++at) {
      if (at > 0) text_ += ", ";
      text_ += ToText(function_->TypeOf(op.results[at]));
    }
    text_ += ")";
  }

  void PrintAttributes(const Attributes& attributes) {
    if (!attributes.empty()) text_ += " " + ToText(DictionaryAttribute(attributes));
  }

  std::string Name(ValueId value) const { return "%" + names_[static_cast<size_t>(value)]; }

  std::string text_;
  const Function* function_ = nullptr;
  std::vector<std::string> names_;
  int64_t next_ = 0;
  int64_t next_argument_ = 0;
};

}  // namespace

std::string Print(const Module& module) { return Printer().Module(module); }
std::string Print(const Function& function, const Op& op) { return Printer().Line(function, op); }

}  // namespace tessera::mosaic
