// Packed rows beside the documents that they are made of: every token of every row, its 13 columns, chunks and edges,
// worked out here from the documents as they were drawn. Tokens are numbers that no two places share, so that each says
// where it comes from.
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <set>

#include "documents.h"
#include "support/proves.h"
#include "support/run_program.h"
#include "support/seed.h"
#include "tessera/rows.h"

namespace tessera {
namespace {

constexpr int64_t kLength = 192;  // of a row: its table has 128 chunks, which are fewer
constexpr int32_t kFirstToken = 10;
constexpr std::array<int32_t, 4> kSentinels = {1, 2, 3, 4};

using Edges = std::vector<std::pair<int32_t, int32_t>>;

struct Drawn {
  int32_t first_token = 0;
  int32_t length = 0;
  std::array<std::optional<std::vector<int32_t>>, kNumTokenColumns> columns;
  std::vector<Chunk> chunks;
  std::array<Edges, 2> edges;  // calls, types
  std::vector<int32_t> platform_ids;
};

Drawn Draw(std::mt19937_64& random, int32_t first_token) {
  const auto below = [&](int32_t count) { return static_cast<int32_t>(random() % static_cast<uint64_t>(count)); };
  Drawn drawn;
  drawn.first_token = first_token;
  drawn.length = 1 + below(below(4) == 0 ? 600 : 90);
  for (size_t c = 0; c < kNumTokenColumns; ++c) {
    if (below(3) == 0) continue;
    drawn.columns[c].emplace();
    for (int32_t i = 0; i < drawn.length; ++i) drawn.columns[c]->push_back(c == 0 ? below(9) : below(2000) - 1000);
  }
  const int32_t longest = below(3) == 0 ? 1 : 12;
  for (int32_t at = below(4); at < drawn.length && below(40) != 0;) {
    const int32_t end = std::min(drawn.length, at + 1 + below(longest));
    drawn.chunks.push_back({at, end, below(9), below(5) - 1});
    at = end + (longest == 1 ? 0 : below(3));
  }
  const auto count = static_cast<int32_t>(drawn.chunks.size());
  for (Edges& edges : drawn.edges) {
    for (int32_t i = count == 0 ? 0 : below(2 * count); i > 0; --i) edges.emplace_back(below(count), below(count));
  }
  for (int32_t i = below(5); i > 0; --i) drawn.platform_ids.push_back(1 + below(30));
  return drawn;
}

std::string LineOf(const Drawn& drawn, std::mt19937_64& random) {
  std::vector<int32_t> tokens(static_cast<size_t>(drawn.length));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = drawn.first_token + static_cast<int32_t>(i);
  std::string line = fmt::format("{{\"tokens\": {}", Join(tokens));
  for (size_t c = 0; c < kNumTokenColumns; ++c) {
    if (drawn.columns[c]) line += fmt::format(", \"{}\": {}", TokenColumns()[c].name, Join(*drawn.columns[c]));
  }
  std::array<std::vector<int32_t>, 4> lists;
  for (const Chunk& chunk : drawn.chunks) {
    lists[0].push_back(chunk.begin);
    lists[1].push_back(chunk.end);
    lists[2].push_back(chunk.kind);
    lists[3].push_back(chunk.dep_level);
  }
  const char* const names[] = {"starts", "ends", "kinds", "dep_levels"};
  for (size_t i = 0; i < 4; ++i) line += fmt::format(", \"token_chunk_{}\": {}", names[i], Join(lists[i]));
  const char* const forms[] = {"[{}, {}]", R"({{"from": {}, "to": {}}})", R"({{"dst": {1}, "src": {0}}})",
                               R"({{"source": {}, "target": {}}})"};
  const char* const kinds[] = {"token_call_edges", "type_edges"};
  for (size_t k = 0; k < 2; ++k) {
    std::vector<std::string> edges;
    for (const auto& [from, to] : drawn.edges[k])
      edges.push_back(fmt::format(fmt::runtime(forms[random() % 4]), from, to));
    line += fmt::format(", \"{}\": {}", kinds[k], Join(edges));
  }
  return line + fmt::format(", \"platform_ids\": {}}}\n", Join(drawn.platform_ids));
}

// Tokens that stand side by side in a row as they do in their document: [begin, end) of it, at a place of the row.
struct Stretch {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t at = 0;
};

// What a row has of one document, worked out.
struct Expected {
  std::vector<Chunk> chunks;     // in the row's tokens
  std::vector<int32_t> numbers;  // in the row, by the document's; -1 is gone
  std::array<std::vector<ChunkEdge>, 2> edges;
};

class RowProof {
 public:
  explicit RowProof(const std::vector<Drawn>& documents) : documents_(documents) {
    for (size_t d = 0; d < documents.size(); ++d) owners_.resize(owners_.size() + documents[d].length, d);
    seen_.resize(owners_.size());
  }

  void CheckShard(const RowShard& shard) {
    ASSERT_EQ(shard.row_tokens(), kLength);
    for (int64_t row = 0; row < shard.rows(); ++row) {
      SCOPED_TRACE(fmt::format("row {}", shard.first_pack_id() + row));
      CheckRow(shard, row);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  bool HaveAllTokensOnce() const {
    return std::all_of(seen_.begin(), seen_.end(), [](int n) { return n == 1; });
  }
  const std::vector<int32_t>& firsts() const { return firsts_; }
  int64_t permuted() const { return permuted_; }

 private:
  template <class T>
  static T At(std::span<const T> list, int64_t row, int64_t width, int64_t i) {
    return list[static_cast<size_t>(row * width + i)];
  }

  void CheckRow(const RowShard& shard, int64_t row) {
    const auto id = [&](int64_t i) { return At(shard.doc_ids(), row, kLength, i); };
    std::array<std::vector<ChunkEdge>, 2> edges;
    std::vector<Chunk> chunks;
    std::vector<int32_t> platform_ids;
    int64_t begin = 0;
    int32_t number = 0;
    while (begin < kLength && id(begin) >= 0) {
      int64_t end = begin;
      while (end < kLength && id(end) == id(begin)) ++end;
      ASSERT_EQ(id(begin), ++number);
      for (int64_t i = begin; i < end; ++i) {
        const bool has_next = i + 1 < end;
        ASSERT_EQ(At(shard.loss_mask(), row, kLength, i), has_next ? 1 : 0);
        ASSERT_EQ(At(shard.target_ids(), row, kLength, i), has_next ? At(shard.input_ids(), row, kLength, i + 1) : 0);
      }
      CheckDocument(shard, row, {begin, end}, chunks, edges);
      if (testing::Test::HasFatalFailure()) return;
      for (const int32_t platform : document_->platform_ids) {
        if (std::find(platform_ids.begin(), platform_ids.end(), platform) == platform_ids.end())
          platform_ids.push_back(platform);
      }
      begin = end;
    }
    ASSERT_EQ(At(shard.valid_token_count(), row, 1, 0), begin);
    ASSERT_EQ(At(shard.num_docs(), row, 1, 0), number);
    for (int64_t i = begin; i < kLength; ++i) {
      ASSERT_EQ(id(i), kPaddingDocument);
      ASSERT_EQ(At(shard.input_ids(), row, kLength, i), 0);
      ASSERT_EQ(At(shard.loss_mask(), row, kLength, i), 0);
      for (size_t c = 0; c < kNumTokenColumns; ++c) {
        const auto column = shard.column(static_cast<TokenColumn>(c));
        if (column.empty()) continue;
        ASSERT_EQ(At(column, row, kLength, i), TokenColumns()[c].fill) << TokenColumns()[c].name;
      }
    }
    chunks.resize(static_cast<size_t>(ChunkWidth(kLength)), {0, 0, 0, 0});
    if (!shard.chunk_starts().empty()) {
      ASSERT_EQ(ChunksOf(shard, row), chunks);
      ASSERT_EQ(Listed(shard.call_edges(row)), edges[0]);
      ASSERT_EQ(Listed(shard.type_edges(row)), edges[1]);
    }
    platform_ids.resize(static_cast<size_t>(kPlatformIds), 0);
    if (!shard.platform_ids(row).empty()) {
      ASSERT_EQ(std::vector<int32_t>(shard.platform_ids(row).begin(), shard.platform_ids(row).end()), platform_ids);
    }
  }

  static std::vector<ChunkEdge> Listed(std::span<const ChunkEdge> edges) { return {edges.begin(), edges.end()}; }
  static std::vector<Chunk> ChunksOf(const RowShard& shard, int64_t row) {
    const int64_t width = ChunkWidth(kLength);
    std::vector<Chunk> chunks;
    for (int64_t i = 0; i < width; ++i) {
      chunks.push_back({At(shard.chunk_starts(), row, width, i), At(shard.chunk_ends(), row, width, i),
                        At(shard.chunk_kinds(), row, width, i), At(shard.chunk_dep_levels(), row, width, i)});
    }
    return chunks;
  }

  // Tokens and columns of [range) in a row, then its chunks and edges behind those of the documents before.
  void CheckDocument(const RowShard& shard, int64_t row, RowRange range, std::vector<Chunk>& chunks,
                     std::array<std::vector<ChunkEdge>, 2>& edges) {
    std::vector<Stretch> stretches;
    std::vector<int32_t> sentinels;
    document_ = nullptr;
    for (int64_t i = range.first; i < range.last; ++i) {
      const int32_t token = At(shard.input_ids(), row, kLength, i);
      const bool is_sentinel = token < kFirstToken;
      if (is_sentinel) {
        sentinels.push_back(token);
      } else {
        const size_t owner = owners_.at(static_cast<size_t>(token - kFirstToken));
        ++seen_[static_cast<size_t>(token - kFirstToken)];
        if (document_ == nullptr) document_ = &documents_[owner];
        ASSERT_EQ(document_, &documents_[owner]) << "one document id, one document";
        const int32_t place = token - document_->first_token;
        if (stretches.empty() || stretches.back().end != place || i == range.first ||
            At(shard.input_ids(), row, kLength, i - 1) < kFirstToken)
          stretches.push_back({place, place, static_cast<int32_t>(i)});
        ++stretches.back().end;
      }
    }
    ASSERT_NE(document_, nullptr);
    firsts_.push_back(document_->first_token + stretches.front().begin);
    CheckOrder(range.last - range.first, stretches, sentinels);
    for (int64_t i = range.first; i < range.last; ++i) CheckToken(shard, row, i);
    if (testing::Test::HasFatalFailure()) return;

    // The cut between prefix and middle does not show where they stand side by side: a chunk across it may be gone.
    std::vector<Chunk> got;
    for (const Chunk& chunk : shard.chunk_starts().empty() ? std::vector<Chunk>() : ChunksOf(shard, row)) {
      if (chunk.end > 0 && chunk.begin >= range.first && chunk.begin < range.last) got.push_back(chunk);
    }
    const auto before = static_cast<int32_t>(chunks.size());
    Expected expected = ExpectedOf(stretches, -1, before);
    const bool is_suffix_first =
        !sentinels.empty() && At(shard.input_ids(), row, kLength, range.first + 1) == kSentinels[1];
    for (size_t k = 0; is_suffix_first && expected.chunks != got && k < document_->chunks.size(); ++k) {
      const Chunk& chunk = document_->chunks[k];
      const bool is_cut = chunk.end - chunk.begin > 1 && chunk.end <= stretches.back().end;
      if (!is_cut || chunk.begin < stretches.back().begin) continue;
      Expected other = ExpectedOf(stretches, static_cast<int64_t>(k), before);
      if (other.chunks == got) expected = std::move(other);
    }
    ASSERT_EQ(got, expected.chunks);
    chunks.insert(chunks.end(), got.begin(), got.end());
    for (size_t k = 0; k < 2; ++k) edges[k].insert(edges[k].end(), expected.edges[k].begin(), expected.edges[k].end());
  }

  void CheckOrder(int64_t length, const std::vector<Stretch>& stretches, const std::vector<int32_t>& sentinels) {
    if (sentinels.empty()) {
      ASSERT_EQ(stretches.size(), 1u);
      const bool is_long = document_->length > kLength;
      ASSERT_EQ(stretches[0].begin % (is_long ? kLength : 1 << 30), 0);
      ASSERT_EQ(length, std::min<int64_t>(kLength, document_->length - stretches[0].begin));
      return;
    }
    ++permuted_;
    ASSERT_THAT(sentinels, testing::ElementsAreArray(kSentinels));
    ASSERT_EQ(length, document_->length + 4);
    std::set<int32_t> places;
    for (const Stretch& stretch : stretches) {
      for (int32_t i = stretch.begin; i < stretch.end; ++i) places.insert(i);
    }
    ASSERT_EQ(static_cast<int32_t>(places.size()), document_->length);
  }

  void CheckToken(const RowShard& shard, int64_t row, int64_t i) {
    const int32_t token = At(shard.input_ids(), row, kLength, i);
    for (size_t c = 0; c < kNumTokenColumns; ++c) {
      const auto column = shard.column(static_cast<TokenColumn>(c));
      const auto& values = document_->columns[c];
      int32_t expected = TokenColumns()[c].fill;
      if (values) expected = token < kFirstToken ? 0 : (*values)[static_cast<size_t>(token - document_->first_token)];
      if (column.empty()) {
        ASSERT_FALSE(values) << TokenColumns()[c].name << " is lost";
      } else {
        ASSERT_EQ(At(column, row, kLength, i), expected) << TokenColumns()[c].name << " at " << i;
      }
    }
  }

  // Chunks that lie within a stretch, in the row's order, as many as a table has; `gone` is one more that is not there.
  Expected ExpectedOf(const std::vector<Stretch>& stretches, int64_t gone, int32_t before) const {
    Expected expected;
    std::vector<std::pair<Chunk, size_t>> kept;
    for (const Stretch& stretch : stretches) {
      for (size_t k = 0; k < document_->chunks.size(); ++k) {
        Chunk chunk = document_->chunks[k];
        if (chunk.begin < stretch.begin || chunk.end > stretch.end || static_cast<int64_t>(k) == gone) continue;
        chunk.begin += stretch.at - stretch.begin;
        chunk.end += stretch.at - stretch.begin;
        kept.emplace_back(chunk, k);
      }
    }
    kept.resize(std::min(kept.size(), static_cast<size_t>(ChunkWidth(kLength))));
    expected.numbers.assign(document_->chunks.size(), -1);
    for (const auto& [chunk, k] : kept) {
      expected.numbers[k] = before + static_cast<int32_t>(expected.chunks.size());
      expected.chunks.push_back(chunk);
    }
    for (size_t k = 0; k < 2; ++k) {
      for (const auto& [from, to] : document_->edges[k]) {
        const ChunkEdge edge{expected.numbers[static_cast<size_t>(from)], expected.numbers[static_cast<size_t>(to)]};
        if (edge.from >= 0 && edge.to >= 0) expected.edges[k].push_back(edge);
      }
    }
    return expected;
  }

  const std::vector<Drawn>& documents_;
  std::vector<size_t> owners_;  // by token
  std::vector<int> seen_;
  std::vector<int32_t> firsts_;
  int64_t permuted_ = 0;
  const Drawn* document_ = nullptr;  // the one at hand
};

TEST(PackedColumns, AreThoseOfTheDocuments) {
  Proves("R69 R70 R73 R74 B16 B21 B25 B36 B37");
  std::mt19937_64 random(PrintedSeed());
  const TemporaryFolder folder;
  std::vector<Drawn> documents;
  std::string text;
  int32_t next = kFirstToken;
  for (int i = 0; i < 160; ++i) {
    documents.push_back(Draw(random, next));
    next += documents.back().length;
    text += LineOf(documents.back(), random);
  }
  const std::string file = folder.File("d.jsonl");
  WriteWhole(file, text);
  for (const Packer packer : {Packer::kGreedy, Packer::kBestFit}) {
    for (const int64_t percent : {0, 60}) {
      PackOptions options;
      options.documents.row_tokens = kLength;
      options.documents.long_documents = LongDocuments::kSplit;
      options.documents.fim_percent = percent;
      options.documents.fim_sentinels = kSentinels;
      options.documents.threads = 2;
      options.packer = packer;
      options.shard_rows = 7;
      const std::string out = folder.File(fmt::format("{}_{}", ToText(packer), percent));
      const auto manifest = PackFiles({file}, out, options);
      ASSERT_TRUE(manifest) << ToText(manifest.error());
      RowProof proof(documents);
      for (const ShardRecord& record : manifest->shards) {
        const auto shard = RowShard::Open(out + "/" + record.file);
        ASSERT_TRUE(shard) << ToText(shard.error());
        proof.CheckShard(*shard);
        if (HasFatalFailure()) return;
      }
      EXPECT_TRUE(proof.HaveAllTokensOnce());
      EXPECT_EQ(proof.permuted(), manifest->counts.permuted);
      EXPECT_EQ(proof.permuted() > 0, percent > 0);
      if (packer == Packer::kGreedy && percent == 0) {
        EXPECT_TRUE(std::is_sorted(proof.firsts().begin(), proof.firsts().end()));
      }
    }
  }
}

// A document longer than a row, cut at once or piece by piece.
TEST(PackedColumns, SplitDocuments_AreTheirSlices) {
  Proves("B36");
  std::mt19937_64 random(PrintedSeed());
  for (int round = 0; round < 30; ++round) {
    const DocumentSet set = Parsed(LineOf(Draw(random, kFirstToken), random));
    const Document document = set.Get(0);
    const auto most = static_cast<int64_t>(1 + random() % 200);
    const std::vector<Document> pieces = Split(document, most);
    const auto length = static_cast<int64_t>(document.tokens.size());
    ASSERT_EQ(std::ssize(pieces), (length + most - 1) / most);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(i) * most;
      ASSERT_EQ(pieces[i], Slice(document, begin, std::min(length, begin + most), nullptr)) << i;
    }
  }
}

}  // namespace
}  // namespace tessera
