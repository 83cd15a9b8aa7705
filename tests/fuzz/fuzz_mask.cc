// Mask expressions: any text gives an error with a place, or an expression that its own text reproduces.
#include "fuzz.h"
#include "support/own_terms.h"
#include "tessera/contract.h"

namespace tessera {

bool FuzzMask(const uint8_t* data, size_t size) {
  const auto expr = ParseMaskExpr(AsText(data, size), ".", &TestTerms());
  if (!expr) {
    Require(!expr.error().message.empty(), "an error has a text");
    return false;
  }
  const std::string text = ToText(*expr);
  const auto again = ParseMaskExpr(text, ".", &TestTerms());
  Require(again && *again == *expr, "text round trip");
  Require(ToText(*again) == text, "canonical text is canonical");
  return true;
}

}  // namespace tessera
