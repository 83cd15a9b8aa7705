// Batch files: any text gives an error or a batch that its JSON reproduces; resolving it never crashes.
#include "fuzz.h"
#include "tessera/batch.h"
#include "tessera/contract.h"

namespace tessera {
namespace {

Contract FixedContract(const char* kv_len, const char* mask) {
  const auto contract = ParseContract(std::string("version = 1\n[shape]\nbatch = 2\nq_len = 12\nkv_len = ") + kv_len +
                                      "\ndim_qk = 4\n[mask]\nexpr = \"" + mask + "\"\n");
  Require(contract.has_value(), "the fixed contract is good");
  return *contract;
}

}  // namespace

bool FuzzBatch(const uint8_t* data, size_t size) {
  static const Contract contracts[] = {FixedContract("12", "causal and documents and valid"),
                                       FixedContract("12", "documents(equal) or sink(2, document)"),
                                       FixedContract("17", "documents and valid"), FixedContract("12", "blocks")};
  const auto batch = ParseBatch(AsText(data, size));
  if (!batch) {
    Require(!ToText(batch.error()).empty(), "an error has a text");
    return false;
  }
  const auto again = ParseBatch(ToJson(*batch));
  Require(again && *again == *batch, "JSON round trip");
  for (const Contract& contract : contracts) (void)ResolveBatch(contract, *batch);
  return true;
}

}  // namespace tessera
