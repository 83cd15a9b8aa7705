// safetensors: round trips, every rule of the format, and hostile files that must cost nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/test_files.h"
#include "tessera/io.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string File(const std::string& header, const std::string& data = {}) {
  std::string bytes(8, '\0');
  const uint64_t size = header.size();
  std::memcpy(bytes.data(), &size, 8);
  return bytes + header + data;
}

void ExpectRefused(const std::string& bytes, const std::string& reason) {
  const Result<TensorMap> result = ParseSafetensors(bytes, "x.safetensors");
  ASSERT_FALSE(result) << reason;
  EXPECT_EQ(result.error().code, ErrorCode::kTensorFile);
  EXPECT_EQ(result.error().where, "x.safetensors");
  EXPECT_THAT(result.error().message, HasSubstr(reason));
}

TensorMap Sample() {
  TensorMap tensors;
  std::mt19937 random(5);
  const auto add = [&](const std::string& name, ElementType type, std::vector<int64_t> shape) {
    Tensor tensor = Tensor::Zeros(type, std::move(shape));
    for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
    tensors.emplace(name, std::move(tensor));
  };
  add("a", ElementType::kBool, {3});
  add("b", ElementType::kBf16, {2, 3});
  add("c \"quoted\" \n \xc3\xa9", ElementType::kF32, {1, 2, 2});
  add("empty", ElementType::kF16, {4, 0});
  add("ids", ElementType::kI64, {2});
  add("scalar", ElementType::kI32, {});
  return tensors;
}

TEST(Safetensors, EveryType_RoundTrips) {
  const TensorMap tensors = Sample();
  const std::string bytes = ToSafetensors(tensors);
  const Result<TensorMap> back = ParseSafetensors(bytes);
  ASSERT_TRUE(back) << ToText(back.error());
  EXPECT_EQ(*back, tensors);
  EXPECT_EQ(ToSafetensors(*back), bytes);
  EXPECT_EQ(Digest(*back), Digest(tensors));
  EXPECT_EQ(ParseSafetensors(ToSafetensors({})).value(), TensorMap());
}

TEST(Safetensors, WrittenFile_IsAlignedAndReadable) {
  const TestFolder folder;
  ASSERT_TRUE(WriteSafetensors(folder / "t", Sample()));
  const Result<TensorMap> back = ReadSafetensors(folder / "t");
  ASSERT_TRUE(back) << ToText(back.error());
  EXPECT_EQ(*back, Sample());
  uint64_t header = 0;
  std::memcpy(&header, Slurp(folder / "t").data(), 8);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_FALSE(ReadSafetensors(folder / "missing"));
}

TEST(Safetensors, MetadataAndForeignOrder_AreRead) {
  const std::string header =
      R"({"__metadata__":{"made by":"a test"},"y":{"shape":[2],"data_offsets":[4,12],"dtype":"F32"},)"
      R"("x":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}  )";
  const Result<TensorMap> tensors = ParseSafetensors(File(header, std::string("\7\0\0\0", 4) + std::string(8, '\0')));
  ASSERT_TRUE(tensors) << ToText(tensors.error());
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ(tensors->at("x").bytes[0], std::byte{7});
  EXPECT_EQ(tensors->at("y").At(1), 0.0);
}

TEST(Safetensors, BrokenFraming_IsRefused) {
  ExpectRefused("", "before the length");
  ExpectRefused("1234567", "before the length");
  ExpectRefused(File("{}").substr(0, 9), "are left");
  ExpectRefused(File(""), "does not begin with '{'");
  ExpectRefused(File(" {}"), "does not begin with '{'");
  ExpectRefused(File("[]"), "does not begin with '{'");
  ExpectRefused(File("{}", "x"), "end at byte 0 of 1");
  std::string huge = File("{}");
  std::memset(huge.data(), 0xff, 8);
  ExpectRefused(huge, "16777216 are allowed");
  const uint64_t just_above = 100'000'001;
  std::memcpy(huge.data(), &just_above, 8);
  ExpectRefused(huge, "16777216 are allowed");
}

TEST(Safetensors, BrokenHeader_IsRefusedNamingTheTensor) {
  const auto one = [](const std::string& entry, const std::string& data = "12345678") {
    return File(R"({"t":)" + entry + "}", data);
  };
  ExpectRefused(File("{"), "parse error");
  ExpectRefused(File("{}}"), "parse error");
  ExpectRefused(File("{\"\xff\":{}}"), "invalid");
  ExpectRefused(one("3"), "tensor \"t\" must not be a number");
  ExpectRefused(one("[]"), "tensor \"t\" must not be an array");
  ExpectRefused(one("{}"), "tensor \"t\" needs dtype, shape and data_offsets");
  ExpectRefused(one(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})"), "tensor \"t\" has dtype \"F64\"");
  ExpectRefused(one(R"({"dtype":1,"shape":[1],"data_offsets":[0,8]})"), "dtype must not be a number");
  ExpectRefused(one(R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})"), "shape must be an array");
  ExpectRefused(one(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"), "nested deeper");
  ExpectRefused(one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "must not be a fraction");
  ExpectRefused(one(R"({"dtype":"F32","shape":[true],"data_offsets":[0,8]})"), "must not be a boolean");
  ExpectRefused(one(R"({"dtype":"F32","shape":null,"data_offsets":[0,8]})"), "must not be null");
  ExpectRefused(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "must not be negative");
  ExpectRefused(one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"), "above int64");
  ExpectRefused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})"), "unknown field \"more\"");
  ExpectRefused(one(R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})"), "\"shape\" appears twice");
  ExpectRefused(one(R"({"dtype":{},"shape":[2],"data_offsets":[0,8]})"), "must not be an object");
  ExpectRefused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]},"t":{})"), "\"t\" appears twice");
  ExpectRefused(File(R"({"__metadata__":{"a":1}})"), "__metadata__ a must not be a number");
  ExpectRefused(File(R"({"__metadata__":[]})"), "must not be an array");
  ExpectRefused(File(std::string(100'000, '[')), "does not begin");
  ExpectRefused(File("{\"a\":" + std::string(100'000, '[')), "must not be an array");
}

TEST(Safetensors, WrongRanges_AreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + a + R"(},"b":{"dtype":"F32","shape":[1],)" +
                    R"("data_offsets":)" + b + "}}",
                "12345678");
  };
  EXPECT_TRUE(ParseSafetensors(two("[4,8]", "[0,4]")));
  ExpectRefused(two("[0,4]", "[0,4]"), "neither overlap nor leave gaps");
  ExpectRefused(two("[0,4]", "[3,7]"), "neither overlap nor leave gaps");
  ExpectRefused(two("[0,4]", "[5,9]"), "8 bytes of data");
  ExpectRefused(two("[0,4]", "[8,4]"), "8 bytes of data");
  ExpectRefused(two("[0,4]", "[4]"), "[begin, end]");
  ExpectRefused(two("[0,4]", "[4,6]"), "needs 4 bytes");
  ExpectRefused(two("[0,9223372036854775807]", "[4,8]"), "8 bytes of data");
  const auto shaped = [](const std::string& shape) {
    return File(R"({"a":{"dtype":"I64","shape":)" + shape + R"(,"data_offsets":[0,8]}})", "12345678");
  };
  EXPECT_TRUE(ParseSafetensors(shaped("[1]")));
  ExpectRefused(shaped("[4294967296,4294967296]"), "too large");
  ExpectRefused(shaped("[2305843009213693953]"), "too large");
  ExpectRefused(shaped("[1099511627776]"), "needs 8796093022208 bytes");
  ExpectRefused(shaped("[0]"), "needs 0 bytes");
}

TEST(Safetensors, TensorThatContradictsItself_IsNotWritten) {
  const TestFolder folder;
  TensorMap tensors = Sample();
  tensors.at("a").bytes.pop_back();
  EXPECT_FALSE(WriteSafetensors(folder / "t", tensors));
  EXPECT_FALSE(WriteSafetensors(folder / "t", {{"__metadata__", Tensor::Zeros(ElementType::kF32, {1})}}));
  EXPECT_EQ(folder.NumEntries(), 0);
}

TEST(Safetensors, Digest_CoversNamesTypesShapesAndBytes) {
  const TensorMap base = {{"a", Tensor::Zeros(ElementType::kF16, {2, 3})}};
  EXPECT_EQ(Digest(base), "0db843011dac32577c7e128a1ffc68fc");
  EXPECT_NE(Digest(base), Digest({{"b", base.at("a")}}));
  EXPECT_NE(Digest(base), Digest({{"a", Tensor::Zeros(ElementType::kBf16, {2, 3})}}));
  EXPECT_NE(Digest(base), Digest({{"a", Tensor::Zeros(ElementType::kF16, {3, 2})}}));
  TensorMap changed = base;
  changed.at("a").bytes[7] = std::byte{1};
  EXPECT_NE(Digest(base), Digest(changed));
}

TEST(Safetensors, DamagedBytes_NeverCrash) {
  Torture(ToSafetensors(Sample()), 10'000, false, [](std::string_view bytes) {
    const Result<TensorMap> tensors = ParseSafetensors(bytes);
    if (tensors) {
      for (const auto& [name, tensor] : *tensors)
        EXPECT_EQ(tensor.NumElements() * BytesOf(tensor.type), static_cast<int64_t>(tensor.bytes.size()));
    }
    return tensors.has_value();
  });
}

}  // namespace
}  // namespace tessera
