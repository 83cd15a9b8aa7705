// Mask expressions: any text gives an error or an expression that its own text reproduces.
#include "fuzz.h"
#include "tessera/contract.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto expr = tessera::ParseMaskExpr(tessera::AsText(data, size));
  if (!expr) return 0;
  const auto again = tessera::ParseMaskExpr(tessera::ToText(*expr));
  tessera::Require(again && *again == *expr, "text round trip");
  return 0;
}
