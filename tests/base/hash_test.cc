// Hashes are part of keys and file formats: the same on every machine, and unambiguous in what they cover.
#include "base/hash.h"

#include <gtest/gtest.h>

#include "base/sha256.h"

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

// The examples of FIPS 180-4, and one of many blocks.
TEST(Sha256, GivesTheStandardsNumbers) {
  EXPECT_EQ(Sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256(std::string(1000, 'a')), "41edece42d63e8d9bf515a9ba6932e1c20cbc9f5a5d134645adb5db1b9737ea3");
}

}  // namespace
}  // namespace tessera
