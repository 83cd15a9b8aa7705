// .npy: what NumPy writes is read, everything else is refused with a reason, and hostile bytes do no harm.
#include "io/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_files.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Npy(const std::string& header, const std::string& data, char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += version;
  bytes += '\0';
  const size_t size = header.size();
  for (size_t i = 0; i < (version == 1 ? 2u : 4u); ++i) bytes += static_cast<char>(size >> (8 * i) & 0xff);
  bytes += header;
  return bytes + data;
}

std::string Header(const std::string& descr, const std::string& order, const std::string& shape) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  while ((header.size() + 11) % 64 != 0) header += ' ';
  return header + '\n';
}

const std::string kData = std::string("\1\0\1\0\0\1", 6);

void ExpectRefused(const std::string& bytes, const std::string& reason) {
  const Result<NpyArray> result = ParseNpy(bytes, "mask.npy");
  ASSERT_FALSE(result) << reason;
  EXPECT_EQ(result.error().code, ErrorCode::kTensorFile);
  EXPECT_EQ(result.error().where, "mask.npy");
  EXPECT_THAT(result.error().message, HasSubstr(reason));
}

TEST(Npy, EveryVersionAndType_IsRead) {
  for (const char version : {'\1', '\2', '\3'}) {
    for (const std::string type : {"|b1", "|u1", "<u1", "?"}) {
      const Result<NpyArray> array = ParseNpy(Npy(Header(type, "False", "(2, 3)"), kData, version));
      ASSERT_TRUE(array) << ToText(array.error());
      EXPECT_THAT(array->shape, ElementsAre(2, 3));
      EXPECT_THAT(array->cells, ElementsAre(1, 0, 1, 0, 0, 1));
    }
  }
}

TEST(Npy, ThreeDimensionsAndEmptyOnes_AreRead) {
  const Result<NpyArray> array = ParseNpy(Npy(Header("|b1", "False", "(3, 2, 1)"), kData));
  ASSERT_TRUE(array);
  EXPECT_THAT(array->shape, ElementsAre(3, 2, 1));
  const Result<NpyArray> empty = ParseNpy(Npy(Header("|b1", "False", "(0, 5)"), ""));
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->cells.empty());
}

TEST(Npy, FortranOrder_BecomesRowMajor) {
  // The matrix [[1,0,1],[0,0,1]] column by column.
  const Result<NpyArray> flat = ParseNpy(Npy(Header("|b1", "True", "(2, 3)"), std::string("\1\0\0\0\1\1", 6)));
  ASSERT_TRUE(flat);
  EXPECT_THAT(flat->cells, ElementsAre(1, 0, 1, 0, 0, 1));
  // cell [a][b][c] of shape (2,2,2) lies at a + 2b + 4c: only [1][0][0] and [0][1][1] are set.
  const Result<NpyArray> cube = ParseNpy(Npy(Header("|b1", "True", "(2, 2, 2)"), std::string("\0\1\0\0\0\0\1\0", 8)));
  ASSERT_TRUE(cube);
  EXPECT_THAT(cube->cells, ElementsAre(0, 0, 0, 1, 1, 0, 0, 0));
}

TEST(Npy, WrongFiles_AreRefusedWithTheReason) {
  ExpectRefused("", "magic");
  ExpectRefused("\x93NUMPX\1", "magic");
  ExpectRefused(Npy(Header("|b1", "False", "(2, 3)"), kData, '\4'), "version is 4");
  ExpectRefused(Npy(Header("<f4", "False", "(2, 3)"), kData), "bool or uint8");
  ExpectRefused(Npy(Header("|i1", "False", "(2, 3)"), kData), "bool or uint8");
  ExpectRefused(Npy(Header("|b1", "False", "(6,)"), kData), "1 dimensions");
  ExpectRefused(Npy(Header("|b1", "False", "()"), "\1"), "0 dimensions");
  ExpectRefused(Npy(Header("|b1", "False", "(1, 1, 2, 3)"), kData), "4 dimensions");
  ExpectRefused(Npy(Header("|b1", "False", "(2, 2)"), kData), "needs 4 bytes of data, 6 are there");
  ExpectRefused(Npy(Header("|b1", "False", "(2, 4)"), kData), "needs 8 bytes of data, 6 are there");
  ExpectRefused(Npy(Header("|u1", "False", "(2, 3)"), "\1\0\2\0\0\1"), "data");
  ExpectRefused(Npy(Header("|u1", "False", "(2, 3)"), std::string("\1\0\2\0\0\1", 6)), "element 2 is 2");
  ExpectRefused(Npy(Header("|b1", "No", "(2, 3)"), kData), "True or False");
  ExpectRefused(Npy(Header("|b1", "False", "(2, -3)"), kData), "needs a number");
  ExpectRefused(Npy("{'descr': '|b1', 'shape': (2, 3)}", kData), "must have");
  ExpectRefused(Npy("{'descr': '|b1', 'descr': '|b1'}", kData), "unknown or repeated");
  ExpectRefused(Npy("{'descr': '|b1', 'order': 1}", kData), "unknown or repeated");
  ExpectRefused(Npy(Header("|b1", "False", "(2, 3)") + "x", kData), "text after");
}

TEST(Npy, HostileSizes_AllocateNothing) {
  ExpectRefused(Npy(Header("|b1", "False", "(4294967296, 4294967296)"), kData), "too large");
  ExpectRefused(Npy(Header("|b1", "False", "(99999999999999999999, 1)"), kData), "too large");
  ExpectRefused(Npy(Header("|b1", "False", "(1099511627776, 4)"), kData), "6 are there");
  std::string long_header = Npy(Header("|b1", "False", "(2, 3)"), kData, '\2');
  long_header[11] = '\x7f';
  ExpectRefused(long_header, "65536 are allowed");
}

TEST(Npy, DamagedBytes_NeverCrash) {
  for (const std::string order : {"False", "True"}) {
    Torture(Npy(Header("|b1", order, "(2, 3)"), kData), 10'000, false, [](std::string_view bytes) {
      const Result<NpyArray> array = ParseNpy(bytes);
      if (array) {
        int64_t count = 1;
        for (const int64_t dim : array->shape) count *= dim;
        EXPECT_EQ(count, static_cast<int64_t>(array->cells.size()));
      }
      return array.has_value();
    });
  }
}

}  // namespace
}  // namespace tessera
