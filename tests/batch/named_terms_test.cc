// Presence follows what the mask names and what really matters: needed is required, named is allowed, the rest refused.
#include <gtest/gtest.h>

#include "support/proves.h"
#include "tessera/batch.h"

namespace tessera {
namespace {

Result<std::vector<BatchRow>> Resolve(const std::string& expr, const std::string& batch) {
  const Result<Contract> contract =
      ParseContract("version = 1\n[shape]\nq_len = 4\ndim_qk = 8\n[mask]\nexpr = \"" + expr + "\"\n");
  EXPECT_TRUE(contract.has_value()) << ToText(contract.error());
  const Result<Batch> parsed = ParseBatch(batch);
  EXPECT_TRUE(parsed.has_value()) << ToText(parsed.error());
  return ResolveBatch(*contract, *parsed);
}

TEST(BatchPresence, NamedWithoutEffect_MayComeOrStayAway) {
  Proves("R32 B32");
  // prefix(9) already allows every pair of four tokens, so validity changes nothing here.
  const std::string expr = "prefix(9) or causal and valid and documents";
  EXPECT_TRUE(Resolve(expr, "{}").has_value());
  EXPECT_TRUE(Resolve(expr, R"({"valid_tokens": [3], "doc_ids": [[0, 0, 1, 1]]})").has_value());
  EXPECT_FALSE(Resolve(expr, R"({"valid_tokens": [7]})").has_value()) << "what comes is still checked";
  EXPECT_FALSE(Resolve(expr, R"({"doc_ids": [[0, 0, 1]]})").has_value());
}

}  // namespace
}  // namespace tessera
