// Random valid contracts with every field exercised, for round trips and damage tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/random_mask.h"
#include "tessera/contract.h"

namespace tessera {

struct RandomContractOptions {
  int64_t max_len = 40;
  bool bitmap = true;  // in memory: whoever parses the text must write the files first
  bool routing = true;
};

inline Contract RandomContract(std::mt19937_64& rng, const RandomContractOptions& options = {}) {
  const auto flip = [&] { return RandomInt(rng, 0, 1) == 1; };
  Contract contract;
  Shape& shape = contract.shape;
  shape.batch = RandomInt(rng, 1, 3);
  shape.q_len = RandomInt(rng, 1, options.max_len);
  shape.kv_len = flip() ? shape.q_len : RandomInt(rng, 1, options.max_len);
  shape.num_kv_heads = RandomInt(rng, 1, 3);
  shape.num_q_heads = shape.num_kv_heads * RandomInt(rng, 1, 3);
  shape.dim_qk = RandomInt(rng, 1, 64);
  shape.dim_v = flip() ? shape.dim_qk : RandomInt(rng, 1, 64);
  shape.dtype = static_cast<DType>(RandomInt(rng, 0, 2));

  RandomMaskOptions mask;
  mask.q_len = shape.q_len;
  mask.kv_len = shape.kv_len;
  mask.bitmap_heads = shape.num_q_heads;
  mask.documents_equal = true;
  mask.blocks = true;
  mask.bitmap = options.bitmap;
  mask.registered = true;
  const int64_t num_masks = flip() ? 1 : shape.num_q_heads;
  for (int64_t head = 0; head < num_masks; ++head) contract.mask.heads.push_back(RandomMask(rng, mask));
  contract.mask.offset = flip() ? shape.kv_len - shape.q_len : RandomInt(rng, -options.max_len, options.max_len);

  contract.score.scale = flip() ? 1.0 / std::sqrt(static_cast<double>(shape.dim_qk))
                                : std::ldexp(static_cast<double>(RandomInt(rng, 1, int64_t{1} << 52)), -50);
  contract.score.softcap = flip() ? 0.0 : static_cast<double>(RandomInt(rng, 1, 1000)) / 7.0;
  contract.score.sink_logits = flip();

  static const std::vector<std::string> reasons = {"short lengths", "a \"quoted\" \\ reason\n\ton two lines",
                                                   "na\xC3\xAFve \xE2\x9C\x93 \x7F\x01"};
  contract.tiles = flip() ? TileSize{256, 512} : TileSize{RandomInt(rng, 1, 300), RandomInt(rng, 1, 300)};
  contract.tiles_reason = reasons[rng() % reasons.size()];
  for (Limit* limit : {&contract.capacity.width, &contract.capacity.width_transposed, &contract.capacity.cleanups}) {
    limit->kind = static_cast<Limit::Kind>(RandomInt(rng, 0, 2));
    limit->number = limit->kind == Limit::Kind::kNumber ? RandomInt(rng, 1, 1000) : 0;
  }

  if (options.routing && RandomInt(rng, 0, 3) == 0) {
    MaskExpr blocks;
    blocks.term.kind = TermKind::kBlocks;
    MaskExpr& first = contract.mask.heads.front();
    std::vector<MaskExpr> parts;
    parts.push_back(std::move(first));
    parts.push_back(std::move(blocks));
    first = JoinMasks(MaskExpr::Op::kAnd, std::move(parts));

    Routing& routing = contract.routing.emplace();
    routing.query_tile = RandomInt(rng, 1, 64);
    routing.block_stride = RandomInt(rng, 1, 3);
    routing.compression_block = routing.block_stride * RandomInt(rng, 1, 2);
    routing.selected_block = routing.compression_block * RandomInt(rng, 1, 2);
    routing.kv_tile = routing.selected_block * RandomInt(rng, 1, 4);
    const int64_t num_blocks = (shape.kv_len + routing.selected_block - 1) / routing.selected_block;
    routing.top_n = RandomInt(rng, 1, num_blocks);
    routing.first_blocks = RandomInt(rng, 0, routing.top_n);
    routing.hierarchical = flip();
    routing.meta_ratio = RandomInt(rng, 1, 8);
    routing.meta_keep = routing.top_n + RandomInt(rng, 0, 8);
    routing.union_capacity = flip() ? 0 : RandomInt(rng, routing.top_n, num_blocks);
  }
  return contract;
}

}  // namespace tessera
