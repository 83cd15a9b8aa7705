// Contract files, TOML or JSON: any text gives an error or a good contract that its canonical text reproduces.
#include "fuzz.h"
#include "tessera/contract.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto contract = tessera::ParseContract(tessera::AsText(data, size));
  if (!contract) return 0;
  tessera::Require(tessera::Validate(*contract).empty(), "what the parser accepts is valid");
  const auto from_toml = tessera::ParseContract(tessera::ToToml(*contract));
  tessera::Require(from_toml && *from_toml == *contract, "TOML round trip");
  const auto from_json = tessera::ParseContract(tessera::ToJson(*contract));
  tessera::Require(from_json && *from_json == *contract, "JSON round trip");
  (void)tessera::DescribeMask(*contract);
  return 0;
}
