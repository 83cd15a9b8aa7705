// The builder: types follow from operands, and no mistake comes out as text.
#include "lanes/xla/stablehlo/builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace tessera::stablehlo {
namespace {

constexpr Element kF32 = Element::kF32;
constexpr Element kI32 = Element::kI32;

Builder Begin() {
  return Builder("test", {{"made_by", "a test"}},
                 {{"a", {kF32, {4, 8}}}, {"b", {kF32, {4, 8}}}, {"n", {kI32, {}}}, {"h", {Element::kBf16, {4, 8}}}});
}

TEST(Builder, Module_HasNameAttributesAndTypes) {
  Builder b = Begin();
  const Value sum = b.Add(b.Input("a"), b.Input("b"));
  const Result<std::string> text = b.Finish({sum});
  ASSERT_TRUE(text.has_value()) << ToText(text.error());
  EXPECT_EQ(
      *text,
      "module @test attributes {mhlo.frontend_attributes = {made_by = \"a test\"}, mhlo.num_partitions = 1 : i32, "
      "mhlo.num_replicas = 1 : i32} {\n"
      "  func.func public @main(%a: tensor<4x8xf32>, %b: tensor<4x8xf32>, %n: tensor<i32>, %h: tensor<4x8xbf16>)"
      " -> (tensor<4x8xf32>) {\n"
      "    %0 = stablehlo.add %a, %b : tensor<4x8xf32>\n"
      "    return %0 : tensor<4x8xf32>\n"
      "  }\n"
      "}\n");
}

TEST(Builder, ResultTypes_FollowFromOperands) {
  Builder b = Begin();
  const Value& a = b.Input("a");
  EXPECT_EQ(b.Dot(a, b.Input("b"), {1, 1}).type, (Type{kF32, {4, 4}}));
  EXPECT_EQ(b.Dot(b.Input("h"), b.Input("h"), {0, 0}).type, (Type{kF32, {8, 8}})) << "sums are f32";
  EXPECT_EQ(b.Reduce(Reduction::kMax, a, {1}).type, (Type{kF32, {4}}));
  EXPECT_EQ(b.Is(Compare::kLt, a, b.Constant({kF32, {}}, 0.0)).type, (Type{Element::kI1, {4, 8}}));
  EXPECT_EQ(b.PadEnd(a, {6, 8}).type, (Type{kF32, {6, 8}}));
  EXPECT_EQ(b.Convert(a, Element::kF16).type, (Type{Element::kF16, {4, 8}}));
  const Values branches = b.If(
      b.Is(Compare::kGt, b.Input("n"), b.Int(0)),
      [&] {
        return Values{a, b.Int(1)};
      },
      [&] {
        return Values{b.Neg(a), b.Int(2)};
      });
  EXPECT_EQ(branches[0].type, a.type);
  EXPECT_EQ(branches[1].type, (Type{kI32, {}}));
  const Values counted = b.For(b.Int(0), b.Input("n"), {a},
                               [&](const Value&, const Values& carried) { return Values{b.Add(carried[0], a)}; });
  EXPECT_TRUE(b.Finish({branches[0], counted[0]}).has_value());
}

TEST(Builder, BatchDot_KeepsTheLeadingAxes) {
  Builder b("test", {}, {{"a", {kF32, {2, 3, 4, 8}}}, {"b", {kF32, {2, 3, 5, 8}}}, {"c", {kF32, {2, 3, 4, 5}}}});
  const Value scores = b.BatchDot(b.Input("a"), b.Input("b"), {1, 1});
  EXPECT_EQ(scores.type, (Type{kF32, {2, 3, 4, 5}}));
  const Value by_key = b.BatchDot(scores, b.Input("c"), {0, 0});
  EXPECT_EQ(by_key.type, (Type{kF32, {2, 3, 5, 5}}));
  const std::string text = b.Finish({by_key}).value();
  EXPECT_NE(text.find("batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3]"), std::string::npos) << text;
  EXPECT_NE(text.find("batching_dims = [0, 1] x [0, 1], contracting_dims = [2] x [2]"), std::string::npos) << text;
}

TEST(Builder, RowsAndAxes_TypesFollow) {
  Builder b("test", {}, {{"t", {kF32, {6, 3}}}, {"i", {kI32, {4}}}, {"x", {kF32, {2, 3, 4}}}});
  EXPECT_EQ(b.TakeRows(b.Input("t"), b.Input("i")).type, (Type{kF32, {4, 3}}));
  EXPECT_EQ(b.SumRows(b.TakeRows(b.Input("t"), b.Input("i")), b.Input("i"), 6).type, (Type{kF32, {6, 3}}));
  EXPECT_EQ(b.Transpose(b.Input("x"), {2, 0, 1}).type, (Type{kF32, {4, 2, 3}}));
  EXPECT_EQ(b.Reverse(b.Input("x"), 1).type, (Type{kF32, {2, 3, 4}}));
  EXPECT_TRUE(b.Finish({b.Input("t")}));
}

TEST(Builder, OtherPrograms_BecomeFunctions) {
  Builder inner("inner", {}, {{"a", {kF32, {2}}}});
  const std::string text = inner.Finish({inner.Neg(inner.Input("a"))}).value();
  Builder b("outer", {}, {{"a", {kF32, {2}}}});
  b.AddFunction("turn", text);
  b.Donate("a", 0);
  const Result<std::string> whole = b.Finish(b.CallFunction("turn", {b.Input("a")}, {{kF32, {2}}}));
  ASSERT_TRUE(whole) << ToText(whole.error());
  EXPECT_EQ(*whole,
            "module @outer attributes {mhlo.frontend_attributes = {}, mhlo.num_partitions = 1 : i32, "
            "mhlo.num_replicas = 1 : i32} {\n"
            "  func.func public @main(%a: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<2xf32>) {\n"
            "    %0 = func.call @turn(%a) : (tensor<2xf32>) -> tensor<2xf32>\n"
            "    return %0 : tensor<2xf32>\n"
            "  }\n"
            "  func.func private @turn(%a: tensor<2xf32>) -> (tensor<2xf32>) {\n"
            "    %0 = stablehlo.negate %a : tensor<2xf32>\n"
            "    return %0 : tensor<2xf32>\n"
            "  }\n"
            "}\n");
}

TEST(Builder, SameConstantInOnePlace_IsWrittenOnce) {
  Builder b = Begin();
  const Value one = b.Constant({kF32, {}}, 1.0);
  EXPECT_EQ(b.Constant({kF32, {}}, 1.0).name, one.name);
  b.If(
      b.Is(Compare::kGt, b.Input("n"), b.Int(0)),
      [&] {
        EXPECT_EQ(b.Constant({kF32, {}}, 1.0).name, one.name) << "an outer one serves inside";
        return Values{b.Constant({kF32, {}}, 2.0)};
      },
      [&] { return Values{one}; });
  const Value two = b.Constant({kF32, {}}, 2.0);
  EXPECT_TRUE(b.Finish({two}).has_value()) << "one made inside a branch must not serve outside";
}

TEST(Builder, NonFiniteConstants_AreWrittenByTheirBits) {
  Builder b = Begin();
  const Value values[] = {b.Constant({kF32, {}}, -INFINITY), b.Constant({Element::kBf16, {}}, INFINITY),
                          b.Constant({Element::kF16, {2}}, NAN)};
  const std::string text = b.Finish({values[0], values[1], values[2]}).value();
  EXPECT_NE(text.find("dense<0xFF800000> : tensor<f32>"), std::string::npos) << text;
  EXPECT_NE(text.find("dense<0x7F80> : tensor<bf16>"), std::string::npos) << text;
  EXPECT_NE(text.find("dense<0x7E00> : tensor<2xf16>"), std::string::npos) << text;
}

struct Mistake {
  const char* name;
  std::function<Value(Builder&)> make;
  const char* said;
};
class Mistakes : public testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, GiveAnErrorAndNoText) {
  Builder b = Begin();
  const Value value = GetParam().make(b);
  const Result<std::string> text = b.Finish({value});
  ASSERT_FALSE(text.has_value()) << *text;
  EXPECT_EQ(CodeText(text.error().code), "TSR-L010");
  EXPECT_NE(text.error().message.find(GetParam().said), std::string::npos) << text.error().message;
}

const Value kOfNowhere{"%elsewhere", {kF32, {4, 8}}, 99};
INSTANTIATE_TEST_SUITE_P(
    All, Mistakes,
    testing::Values(
        Mistake{"shapes",
                [](Builder& b) {
                  return b.Add(b.Input("a"), b.Reshape(b.Input("b"), {8, 4}));
                },
                "add"},
        Mistake{"elements", [](Builder& b) { return b.Add(b.Input("a"), b.Input("h")); }, "add"},
        Mistake{"transpose",
                [](Builder& b) {
                  return b.Transpose(b.Input("a"), {0, 0});
                },
                "transpose"},
        Mistake{"reverse", [](Builder& b) { return b.Reverse(b.Input("a"), 2); }, "reverse"},
        Mistake{"rows", [](Builder& b) { return b.TakeRows(b.Input("a"), b.Input("n")); }, "gather"},
        Mistake{"sum_of_rows", [](Builder& b) { return b.SumRows(b.Input("a"), b.Input("n"), 2); }, "sum of rows"},
        Mistake{"donation",
                [](Builder& b) {
                  b.Donate("n", 0);
                  return b.Input("a");
                },
                "n cannot be output 0"},
        Mistake{"function",
                [](Builder& b) {
                  b.AddFunction("f", "no program");
                  return b.Input("a");
                },
                "not a program"},
        Mistake{"reshape",
                [](Builder& b) {
                  return b.Reshape(b.Input("a"), {5, 8});
                },
                "reshape"},
        Mistake{"dot",
                [](Builder& b) {
                  return b.Dot(b.Input("a"), b.Input("b"), {1, 0});
                },
                "dot_general"},
        Mistake{"dot_of_batches",
                [](Builder& b) {
                  return b.Dot(b.Reshape(b.Input("a"), {2, 2, 8}), b.Reshape(b.Input("b"), {2, 2, 8}), {1, 1});
                },
                "no matrix"},
        Mistake{"batches",
                [](Builder& b) {
                  return b.BatchDot(b.Reshape(b.Input("a"), {2, 2, 8}), b.Reshape(b.Input("b"), {1, 4, 8}), {1, 1});
                },
                "dot_general"},
        Mistake{"vectors",
                [](Builder& b) {
                  return b.BatchDot(b.Reshape(b.Input("a"), {32}), b.Reshape(b.Input("b"), {32}), {0, 0});
                },
                "dot_general"},
        Mistake{"spread",
                [](Builder& b) {
                  return b.Spread(b.Input("a"), {4, 9}, {0, 1});
                },
                "broadcast_in_dim"},
        Mistake{"select", [](Builder& b) { return b.Select(b.Input("a"), b.Input("a"), b.Input("b")); }, "select"},
        Mistake{"input", [](Builder& b) { return b.Neg(b.Input("nobody")); }, "not a value"},
        Mistake{"nowhere", [](Builder& b) { return b.Neg(kOfNowhere); }, "%elsewhere"},
        Mistake{"slice",
                [](Builder& b) {
                  return b.SliceAt(b.Input("a"), Values{b.Int(0)}, {1, 1});
                },
                "dynamic_slice"},
        Mistake{"update",
                [](Builder& b) {
                  return b.UpdateAt(b.Input("a"), b.Reshape(b.Input("b"), {2, 16}), Values{b.Int(0), b.Int(0)});
                },
                "dynamic_update_slice"},
        Mistake{"pad",
                [](Builder& b) {
                  return b.PadEnd(b.Input("a"), {3, 8});
                },
                "pad"},
        Mistake{"axis", [](Builder& b) { return b.Reduce(Reduction::kAdd, b.Input("a"), {2}); }, "reduce"},
        Mistake{"finite", [](Builder& b) { return b.IsFinite(b.Input("n")); }, "is_finite"},
        Mistake{"branches",
                [](Builder& b) {
                  const Value yes = b.Is(Compare::kGt, b.Input("n"), b.Int(0));
                  return b.If(
                      yes, [&] { return Values{b.Input("a")}; }, [&] { return Values{b.Input("n")}; })[0];
                },
                "if"},
        Mistake{"carried",
                [](Builder& b) {
                  return b.For(b.Int(0), b.Int(3), {b.Input("a")},
                               [&](const Value& i, const Values&) { return Values{i}; })[0];
                },
                "while"},
        Mistake{"escaped",
                [](Builder& b) {
                  Value inside;
                  b.For(b.Int(0), b.Int(3), {b.Input("a")}, [&](const Value&, const Values& carried) {
                    inside = b.Neg(carried[0]);
                    return Values{inside};
                  });
                  return b.Neg(inside);
                },
                "not a value of this place"}),
    [](const auto& mistake) { return mistake.param.name; });

}  // namespace
}  // namespace tessera::stablehlo
