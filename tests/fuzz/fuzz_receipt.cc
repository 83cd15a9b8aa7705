// Receipt files: any text gives an error or a receipt that holds its own rules.
#include "fuzz.h"
#include "tessera/receipt.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto receipt = tessera::ParseReceipt(tessera::AsText(data, size));
  if (!receipt) return 0;
  tessera::Require(tessera::CheckReceipt(*receipt).empty(), "what the parser accepts is consistent");
  tessera::Require(tessera::ParseReceipt(tessera::ToJson(*receipt)).has_value(), "JSON round trip");
  return 0;
}
