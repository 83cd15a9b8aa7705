// Which keys a query may see, read off the contract and the raw batch. Shares nothing with plans, the run algebra or
// ResolveBatch: ids, ranks and valid lengths are worked out again. A row at a time: a term is a byte for each key, and
// `and` and `or` are taken byte by byte. The tests' dense oracle says the same pair by pair, and they hold the two
// together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/batch.h"
#include "tessera/contract.h"
#include "tessera/error.h"
#include "tessera/mask_term.h"

namespace tessera::check {

class MaskTest {
 public:
  // Contract and batch must outlive it. Refuses a batch that does not fit the contract, or has not what its mask needs.
  static Result<MaskTest> Make(const Contract& contract, const Batch& batch, int64_t batch_row);

  // Sets cells[j] to 1 where query i of `head` may see key j, and to 0 elsewhere; there are kv_len of them.
  void Row(int64_t head, int64_t i, std::span<uint8_t> cells) const;

 private:
  // What a registered term gives for one head, for terms that are given as runs.
  struct TermRuns {
    const MaskTerm* term = nullptr;
    int64_t head = 0;
    std::vector<MaskRun> runs = {};
  };

  Status Gather(const MaskExpr& expr, int64_t head);
  Status GatherTerm(const MaskTerm& term, int64_t head);
  Status ReadDocuments();
  Status ReadCounts();
  Status ReadPicks();
  void ExprRow(const MaskExpr& expr, int64_t head, int64_t i, std::span<uint8_t> cells) const;
  void TermRow(const MaskTerm& term, int64_t head, int64_t i, std::span<uint8_t> cells) const;
  void DocumentRow(int64_t i, int64_t ranks, std::span<uint8_t> cells) const;
  void PickRow(int64_t head, int64_t i, std::span<uint8_t> cells) const;
  void RegisteredRow(const MaskTerm& term, int64_t head, int64_t i, std::span<uint8_t> cells) const;
  int64_t HeadOf(const MaskTerm& term, int64_t head) const;

  const Contract* contract_ = nullptr;
  const Batch* batch_ = nullptr;
  int64_t batch_row_ = 0;
  std::vector<int32_t> q_doc_;  // negative: no document
  std::vector<int32_t> kv_doc_;
  std::vector<int32_t> kv_rank_;  // how many earlier keys of the row have the same id
  int64_t q_valid_ = 0;
  int64_t kv_valid_ = 0;
  std::vector<TermRuns> runs_;
};

}  // namespace tessera::check
