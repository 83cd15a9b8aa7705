#include "routing/scan.h"

#include <algorithm>
#include <cmath>

#include "routing/dots.h"

namespace tessera::routing {

void Selection::Offer(float score, int32_t id) {
  if (!(score > Threshold())) return;
  if (std::find(forced_.begin(), forced_.begin() + static_cast<std::ptrdiff_t>(num_forced_), id) !=
      forced_.begin() + static_cast<std::ptrdiff_t>(num_forced_)) {
    return;
  }
  if (Size() < Capacity()) ++num_best_;
  size_t at = num_best_ - 1;
  for (; at > 0 && best_[at - 1].score < score; --at) best_[at] = best_[at - 1];
  best_[at] = {score, id};
}

bool Selection::Has(int32_t id) const {
  for (size_t i = 0; i < num_forced_; ++i) {
    if (forced_[i] == id) return true;
  }
  for (size_t i = 0; i < num_best_; ++i) {
    if (best_[i].id == id) return true;
  }
  return false;
}

void Selection::Write(std::span<int32_t> out) const {
  for (size_t i = 0; i < num_forced_; ++i) out[i] = forced_[i];
  for (size_t i = 0; i < num_best_; ++i) out[num_forced_ + i] = best_[i].id;
  std::sort(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(Size()));
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(Size()), out.end(), -1);
}

void Selection::WriteScores(std::span<const int32_t> written, std::span<float> out) const {
  for (size_t n = 0; n < written.size(); ++n) {
    const auto end = best_.begin() + static_cast<std::ptrdiff_t>(num_best_);
    const auto found = std::find_if(best_.begin(), end, [&](const Entry& entry) { return entry.id == written[n]; });
    out[n] = found != end ? found->score : written[n] < 0 ? kNoScore : std::numeric_limits<float>::quiet_NaN();
  }
}

QueryChunk::QueryChunk(const RoutingInput& input, const CompressedKeys& keys, int64_t keep)
    : input_(input),
      keys_(keys),
      routing_(*input.contract->routing),
      scale_(static_cast<float>(input.contract->score.scale)),
      num_blocks_(NumBlocks(*input.contract)),
      legal_words_((num_blocks_ + 63) / 64),
      sums_(static_cast<size_t>(kScoreChunk * keys.dim)),
      legal_bits_(static_cast<size_t>(kScoreChunk * legal_words_)),
      scores_(static_cast<size_t>(kScoreChunk * kMeanTile)),
      horizons_(static_cast<size_t>(kScoreChunk)),
      queries_(static_cast<size_t>(kScoreChunk)),
      forced_(static_cast<size_t>(kScoreChunk * keep)),
      best_(static_cast<size_t>(kScoreChunk * keep)),
      active_(static_cast<size_t>(kScoreChunk)),
      active_sum_(static_cast<size_t>(kScoreChunk)) {
  for (int64_t i = 0; i < kScoreChunk; ++i) {
    const auto first = static_cast<size_t>(i * keep);
    const auto count = static_cast<size_t>(keep);
    selections_.emplace_back(std::span(forced_).subspan(first, count), std::span(best_).subspan(first, count));
  }
}

int64_t QueryChunk::Bytes(const Contract& contract, int64_t keep) {
  const int64_t legal_words = (NumBlocks(contract) + 63) / 64;
  const int64_t per_query = PaddedDim(contract.shape.dim_qk) * static_cast<int64_t>(sizeof(float)) +
                            legal_words * static_cast<int64_t>(sizeof(uint64_t)) +
                            kMeanTile * static_cast<int64_t>(sizeof(float)) +
                            keep * static_cast<int64_t>(sizeof(int32_t) + sizeof(Selection::Entry)) +
                            static_cast<int64_t>(sizeof(int64_t) + sizeof(ChunkQuery) + sizeof(Selection) +
                                                 sizeof(int32_t) + sizeof(const float*));
  return static_cast<int64_t>(sizeof(QueryChunk)) + kScoreChunk * per_query;
}

void QueryChunk::Load(const Place& place) {
  place_ = place;
  row_ = &keys_.rows[static_cast<size_t>(place.b)];
  const Shape& shape = input_.contract->shape;
  const int64_t group = shape.num_q_heads / shape.num_kv_heads;
  LegalRows legal((*input_.legal)[static_cast<size_t>(place.b * shape.num_kv_heads + place.head)]);
  std::fill(legal_bits_.begin(), legal_bits_.end(), 0);
  for (int64_t q = place.begin; q < place.end; ++q) {
    const int64_t i = q - place.begin;
    float* sum = sums_.data() + i * keys_.dim;
    CopyRow(input_.q.type, RowAt(input_.q, place.b, place.head * group, q), shape.dim_qk, sum);
    for (int64_t g = 1; g < group; ++g) {
      AddRow(input_.q.type, RowAt(input_.q, place.b, place.head * group + g, q), shape.dim_qk, sum);
    }
    const int64_t position = q + input_.contract->mask.offset;
    int64_t horizon = position;
    uint64_t* bits = legal_bits_.data() + i * legal_words_;
    for (const Interval& interval : legal.At(q)) {
      const int64_t last = interval.hi.At(q) - 1;
      horizon = std::max(horizon, last);
      const int64_t last_block = last / routing_.selected_block;
      for (int64_t block = interval.lo.At(q) / routing_.selected_block; block <= last_block;) {
        const int64_t count = std::min(last_block + 1 - block, 64 - block % 64);
        const uint64_t ones = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
        bits[block / 64] |= ones << (block % 64);
        block += count;
      }
    }
    horizons_[static_cast<size_t>(i)] = horizon;
    const bool has_own = position >= 0 && position < shape.kv_len && IsLegal(i, position / routing_.selected_block);
    query(i) = {.own_block = has_own ? position / routing_.selected_block : -1};
    selection(i).Clear();
  }
  ForEachStretch([&](const DocumentMeans& document, int64_t begin, int64_t end) {
    const auto first = row_->means.begin() + document.mean_begin;
    const auto last = row_->means.begin() + document.mean_end;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t horizon = horizons_[static_cast<size_t>(i)];
      const auto found = std::partition_point(first, last, [&](const Mean& mean) { return mean.last <= horizon; });
      query(i).mean_end = static_cast<int32_t>(found - row_->means.begin());
    }
  });
}

bool QueryChunk::IsAnyLegal(int64_t i, int64_t first_block, int64_t last_block) const {
  const uint64_t* bits = Bits(i);
  for (int64_t block = first_block; block <= last_block;) {
    const int64_t count = std::min(last_block + 1 - block, 64 - block % 64);
    const uint64_t ones = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    if ((bits[block / 64] >> (block % 64) & ones) != 0) return true;
    block += count;
  }
  return false;
}

int64_t QueryChunk::LastHorizon(int64_t begin, int64_t end) const {
  return *std::max_element(horizons_.begin() + begin, horizons_.begin() + end);
}

void QueryChunk::Activate(int64_t i) {
  active_[static_cast<size_t>(num_active_)] = static_cast<int32_t>(i);
  active_sum_[static_cast<size_t>(num_active_)] = sums_.data() + i * keys_.dim;
  ++num_active_;
}

void QueryChunk::DotWith(const float* rows, int32_t begin, int32_t end) {
  Dots({.queries = std::span(active_sum_).first(static_cast<size_t>(num_active_)),
        .rows = rows + begin * keys_.dim,
        .num_rows = end - begin,
        .dim = keys_.dim,
        .out = scores_.data(),
        .out_stride = kMeanTile});
}

void QueryChunk::OfferBlock(int64_t i) {
  const ChunkQuery& at = query(i);
  Selection& kept = selection(i);
  if (at.best > kept.Threshold() && IsLegal(i, at.block)) kept.Offer(at.best, at.block);
}

void QueryChunk::ScoreMeans(int32_t begin, int32_t end) {
  const auto num_means = static_cast<int64_t>(row_->means.size());
  DotWith(row_->values.data() + place_.head * num_means * keys_.dim, begin, end);
  const Mean* means = row_->means.data();
  for (int64_t a = 0; a < num_active_; ++a) {
    const int64_t i = active_[static_cast<size_t>(a)];
    ChunkQuery& at = query(i);
    const float* scores = scores_.data() + a * kMeanTile;
    const int32_t last = std::min(end, at.mean_end);
    for (int32_t m = begin; m < last;) {
      const int32_t block = means[m].block;
      if (block != at.block) {
        OfferBlock(i);
        at.block = block;
        at.best = kNoScore;
      }
      float best = at.best;
      int64_t nans = 0;
      for (; m < last && means[m].block == block; ++m) {
        const float score = scale_ * scores[m - begin];
        best = score > best ? score : best;
        nans += std::isnan(score) ? 1 : 0;
      }
      at.best = best;
      if (nans > 0 && IsLegal(i, block)) nan_scores_ += nans;
    }
  }
}

bool QueryChunk::IsMetaLegal(int64_t i, const MetaBlock& meta) const {
  for (int32_t m = meta.mean_begin; m < meta.mean_end; ++m) {
    if (IsLegal(i, row_->means[static_cast<size_t>(m)].block)) return true;
  }
  return false;
}

void QueryChunk::ScoreRepresentatives(int32_t begin, int32_t end) {
  const auto num_metas = static_cast<int64_t>(row_->metas.size());
  DotWith(row_->representatives.data() + place_.head * num_metas * keys_.dim, begin, end);
  for (int64_t a = 0; a < num_active_; ++a) {
    const int64_t i = active_[static_cast<size_t>(a)];
    const float* scores = scores_.data() + a * kMeanTile;
    Selection& kept = selection(i);
    const int32_t mean_end = query(i).mean_end;
    float threshold = kept.Threshold();
    for (int32_t g = begin; g < end && row_->metas[static_cast<size_t>(g)].mean_end <= mean_end; ++g) {
      const float score = scale_ * scores[g - begin];
      if (score <= threshold) continue;  // NaN goes on, to be counted
      if (!IsMetaLegal(i, row_->metas[static_cast<size_t>(g)])) continue;
      nan_scores_ += std::isnan(score) ? 1 : 0;
      kept.Offer(score, g);
      threshold = kept.Threshold();
    }
  }
}

void QueryChunk::ForceBlocks() {
  for (int64_t i = 0; i < place_.end - place_.begin; ++i) {
    Selection& kept = selection(i);
    kept.Clear();
    if (query(i).own_block >= 0) kept.Force(static_cast<int32_t>(query(i).own_block));
    for (int64_t block = 0; block < std::min(routing_.first_blocks, num_blocks_); ++block) {
      if (IsLegal(i, block)) kept.Force(static_cast<int32_t>(block));
    }
  }
}

void QueryChunk::FinishBlocks(PickRows& out) {
  for (int64_t i = 0; i < place_.end - place_.begin; ++i) {
    if (query(i).block >= 0) OfferBlock(i);
    Selection& kept = selection(i);
    for (int64_t block = 0; block < num_blocks_ && kept.Size() < kept.Capacity(); ++block) {
      if (IsLegal(i, block)) kept.Fill(static_cast<int32_t>(block));
    }
    const int64_t at = ((place_.b * out.q_len + place_.begin + i) * out.num_kv_heads + place_.head) * out.top_n;
    const auto written = std::span(out.blocks).subspan(static_cast<size_t>(at), static_cast<size_t>(out.top_n));
    kept.Write(written);
    if (!out.scores.empty()) {
      kept.WriteScores(written, std::span(out.scores).subspan(static_cast<size_t>(at), written.size()));
    }
  }
}

int64_t ForEachChunk(const RoutingInput& input, const CompressedKeys& keys, int64_t keep,
                     const std::function<void(QueryChunk&)>& work) {
  const Shape& shape = input.contract->shape;
  const int64_t chunks = (shape.q_len + kScoreChunk - 1) / kScoreChunk;
  const int64_t items = shape.batch * shape.num_kv_heads * chunks;
  std::vector<int64_t> nan_scores(static_cast<size_t>(items), 0);
  ForEach(input.parallel, items, [&](int64_t item) {
    const int64_t begin = item % chunks * kScoreChunk;
    QueryChunk chunk(input, keys, keep);
    chunk.Load({.b = item / chunks / shape.num_kv_heads,
                .head = item / chunks % shape.num_kv_heads,
                .begin = begin,
                .end = std::min(begin + kScoreChunk, shape.q_len)});
    work(chunk);
    nan_scores[static_cast<size_t>(item)] = chunk.nan_scores();
  });
  int64_t total = 0;
  for (const int64_t count : nan_scores) total += count;
  return total;
}

PickRows MakePickRows(const RoutingInput& input) {
  const Contract& contract = *input.contract;
  const Shape& shape = contract.shape;
  PickRows out{.batch = shape.batch,
               .q_len = shape.q_len,
               .num_kv_heads = shape.num_kv_heads,
               .top_n = contract.routing->top_n,
               .block_tokens = contract.routing->selected_block};
  out.blocks.assign(static_cast<size_t>(out.batch * out.q_len * out.num_kv_heads * out.top_n), -1);
  if (input.keep_scores) out.scores.assign(out.blocks.size(), kNoScore);
  return out;
}

}  // namespace tessera::routing
