// Hashes are part of keys and file formats: the same on every machine, and unambiguous in what they cover.
#include "base/hash.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

template <class Feed>
std::string HashOf(const Feed& feed) {
  Hasher hasher;
  feed(hasher);
  return Hex(hasher.Finish());
}

TEST(Hash, KnownInputs_GiveGoldenValues) {
  EXPECT_EQ(HashOf([](Hasher&) {}), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(HashOf([](Hasher& h) { h.Bytes("abc", 3); }), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(HashOf([](Hasher& h) { h.Int(-1); }), "dc6b20d207425aa58b3249d34c2ef0b0");
  EXPECT_EQ(HashOf([](Hasher& h) { h.Real(0.5); }), "4db2ae0a682e4ec55f215778b5c88d19");
  EXPECT_EQ(HashOf([](Hasher& h) { h.Text("causal"); }), "0b1ec1693993c35aae072a962c34af58");
}

TEST(Hash, TextBoundaries_Matter) {
  const auto first = HashOf([](Hasher& h) { h.Text("ab"), h.Text("c"); });
  const auto second = HashOf([](Hasher& h) { h.Text("a"), h.Text("bc"); });
  EXPECT_NE(first, second);
}

TEST(Hash, ChunkedInput_EqualsWhole) {
  const std::string bytes(5000, 'x');
  const auto whole = HashOf([&](Hasher& h) { h.Bytes(bytes.data(), bytes.size()); });
  const auto chunked = HashOf([&](Hasher& h) {
    for (const char& c : bytes) h.Bytes(&c, 1);
  });
  EXPECT_EQ(whole, chunked);
}

TEST(Hash, Hex_IsLowerCaseFirstByteFirst) {
  EXPECT_EQ(Hex({0x01, 0xab, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0}), "01ab00000000000000000000000000f0");
}

}  // namespace
}  // namespace tessera
