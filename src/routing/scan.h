// What score and expand share: one chunk of queries at a time scores the means of its documents, and each query keeps
// the best of them. Memory is the chunk's; the bound is in ScoreScratchBytes.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "routing/routing.h"
#include "routing/rows.h"

namespace tessera::routing {

inline constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// The best `capacity` ids of one query: first the forced ones, then by score. Ids are offered in ascending order, so
// that an equal score never displaces a lower id.
class Selection {
 public:
  struct Entry {
    float score;
    int32_t id;
  };
  Selection() = default;
  Selection(std::span<int32_t> forced, std::span<Entry> best) : forced_(forced), best_(best) {}

  void Clear() { num_forced_ = num_best_ = 0; }
  void Force(int32_t id) {
    if (Size() < Capacity() && !Has(id)) forced_[num_forced_++] = id;
  }
  // What a score must exceed to get in: NaN and -inf never do.
  float Threshold() const {
    const size_t room = Capacity() - num_forced_;
    if (num_best_ < room) return kNoScore;
    return room == 0 ? std::numeric_limits<float>::infinity() : best_[room - 1].score;
  }
  void Offer(float score, int32_t id);
  // Takes an id without a score, after everything that has one.
  void Fill(int32_t id) {
    if (Size() < Capacity() && !Has(id)) best_[num_best_++] = {kNoScore, id};
  }
  size_t Size() const { return num_forced_ + num_best_; }
  size_t Capacity() const { return best_.size(); }
  bool Has(int32_t id) const;
  // Ascending, then -1 up to out.size().
  void Write(std::span<int32_t> out) const;
  // The scores of what Write wrote, as PickRows has them.
  void WriteScores(std::span<const int32_t> written, std::span<float> out) const;

 private:
  std::span<int32_t> forced_;
  std::span<Entry> best_;
  size_t num_forced_ = 0;
  size_t num_best_ = 0;
};

// One query of a chunk.
struct ChunkQuery {
  int64_t own_block = -1;  // of its position; -1 when that is no key, or the block is not legal
  int32_t mean_end = 0;    // one past the last mean of its document that it may score
  int32_t block = -1;      // the block whose means are being scored, and the best of them so far
  float best = kNoScore;
};

// Chunk `chunk` of (batch row b, KV head): its queries' sums, legal blocks, horizons and selections.
class QueryChunk {
 public:
  struct Place {
    int64_t b = 0;
    int64_t head = 0;
    int64_t begin = 0;  // queries [begin, end)
    int64_t end = 0;
  };
  QueryChunk(const RoutingInput& input, const CompressedKeys& keys, int64_t keep);
  static int64_t Bytes(const Contract& contract, int64_t keep);

  void Load(const Place& place);
  const Place& place() const { return place_; }
  const CompressedRow& row() const { return *row_; }
  int64_t nan_scores() const { return nan_scores_; }
  bool IsLegal(int64_t i, int64_t block) const { return (Bits(i)[block / 64] >> (block % 64) & 1U) != 0; }
  bool IsAnyLegal(int64_t i, int64_t first_block, int64_t last_block) const;
  ChunkQuery& query(int64_t i) { return queries_[static_cast<size_t>(i)]; }
  Selection& selection(int64_t i) { return selections_[static_cast<size_t>(i)]; }
  // The latest horizon of queries [begin, end) of the chunk.
  int64_t LastHorizon(int64_t begin, int64_t end) const;

  // Calls visit(document, begin, end) for each stretch of this chunk's queries that has means to score.
  template <class Visit>
  void ForEachStretch(Visit visit) const {
    const std::vector<QueryStretch>& all = row_->stretches;
    auto stretch =
        std::partition_point(all.begin(), all.end(), [&](const QueryStretch& s) { return s.end <= place_.begin; });
    for (; stretch != all.end() && stretch->begin < place_.end; ++stretch) {
      if (stretch->document < 0) continue;
      visit(row_->documents[static_cast<size_t>(stretch->document)],
            std::max<int64_t>(stretch->begin, place_.begin) - place_.begin,
            std::min<int64_t>(stretch->end, place_.end) - place_.begin);
    }
  }

  // Queries that the next ScoreMeans or ScoreRepresentatives is for.
  void ClearActive() { num_active_ = 0; }
  void Activate(int64_t i);
  bool HasActive() const { return num_active_ > 0; }
  // Scores means [begin, end), at most kMeanTile of them, for the active queries, and offers every block that is left
  // behind. Means come in ascending order.
  void ScoreMeans(int32_t begin, int32_t end);
  // Scores representatives [begin, end), at most kMeanTile, and offers the meta-blocks to those active queries that may
  // see them whole.
  void ScoreRepresentatives(int32_t begin, int32_t end);
  bool IsMetaLegal(int64_t i, const MetaBlock& meta) const;

  // Forces the blocks that a query keeps whatever their scores; before the first mean is scored.
  void ForceBlocks();
  // Offers the last blocks, fills up with legal blocks without a score, and writes the picks.
  void FinishBlocks(PickRows& out);

 private:
  const uint64_t* Bits(int64_t i) const { return legal_bits_.data() + i * legal_words_; }
  void OfferBlock(int64_t i);
  void DotWith(const float* rows, int32_t begin, int32_t end);

  const RoutingInput& input_;
  const CompressedKeys& keys_;
  const Routing& routing_;
  float scale_ = 1.0F;
  int64_t num_blocks_ = 0;
  int64_t legal_words_ = 0;
  Place place_;
  const CompressedRow* row_ = nullptr;
  int64_t nan_scores_ = 0;
  std::vector<float> sums_;           // [kScoreChunk, dim]
  std::vector<uint64_t> legal_bits_;  // [kScoreChunk, legal_words]
  std::vector<float> scores_;         // [kScoreChunk, kMeanTile]
  std::vector<int64_t> horizons_;
  std::vector<ChunkQuery> queries_;
  std::vector<Selection> selections_;
  std::vector<int32_t> forced_;           // [kScoreChunk, keep]
  std::vector<Selection::Entry> best_;    // [kScoreChunk, keep]
  std::vector<int32_t> active_;           // places in the chunk
  std::vector<const float*> active_sum_;  // their sums
  int64_t num_active_ = 0;
};

// Runs work(chunk) for every chunk of queries of every batch row and KV head, and gives the NaN scores that were met.
int64_t ForEachChunk(const RoutingInput& input, const CompressedKeys& keys, int64_t keep,
                     const std::function<void(QueryChunk&)>& work);

// Room for the picks of a contract, all -1, and for their scores where those are kept.
PickRows MakePickRows(const RoutingInput& input);

}  // namespace tessera::routing
