// Batch files: any text gives an error or a batch that its JSON reproduces; resolving it never crashes.
#include "fuzz.h"
#include "tessera/batch.h"
#include "tessera/contract.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto contract = tessera::ParseContract(
      "version = 1\n[shape]\nbatch = 2\nq_len = 12\nkv_len = 12\nnum_q_heads = 1\nnum_kv_heads = 1\ndim_qk = 4\ndim_v "
      "= 4\n"
      "dtype = \"f32\"\n[mask]\nexpr = \"causal and documents and valid\"\n");
  tessera::Require(contract.has_value(), "the fixed contract is good");
  const auto batch = tessera::ParseBatch(tessera::AsText(data, size));
  if (!batch) return 0;
  const auto again = tessera::ParseBatch(tessera::ToJson(*batch));
  tessera::Require(again && *again == *batch, "JSON round trip");
  (void)tessera::ResolveBatch(*contract, *batch);
  return 0;
}
