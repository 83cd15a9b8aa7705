// The table of an attention program of several devices: what the contract says, whatever the program says of itself.
#include "shard/program_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/proves.h"

namespace tessera::shard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Four shards of 2 tiles of 16 tokens; the row has 120.
ContextPlan PlanOf(Exchange exchange = Exchange::kSparse) {
  ContextPlan plan;
  plan.contract.shape = {.batch = 2,
                         .q_len = 120,
                         .kv_len = 120,
                         .num_q_heads = 8,
                         .num_kv_heads = 4,
                         .dim_qk = 16,
                         .dim_v = 8,
                         .dtype = DType::kBf16};
  plan.contract.score.sink_logits = true;
  plan.exchange = exchange;
  plan.shards = 4;
  plan.tile = 16;
  plan.tiles_per_shard = 2;
  return plan;
}
const Mesh kMesh{{{"context", 4}}};

// As an honest program declares it, and with a table of its own.
DeclaredProgram Declared(const KnownTensors& known) {
  DeclaredProgram program{known.inputs, known.outputs};
  program.inputs.push_back({"slots_forward", ElementType::kI32, {64, 3}, 0});
  program.outputs.push_back({"tiles", ElementType::kI32, {4}, 0});
  return program;
}
ProgramTensor& Of(std::vector<ProgramTensor>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const ProgramTensor& one) { return one.name == name; });
}
std::string Refused(const KnownTensors& known, const DeclaredProgram& program, std::optional<int64_t> ceiling = {}) {
  const Result<ShardTable> table = MakeProgramTable(kMesh, known, program, ceiling);
  EXPECT_FALSE(table.has_value());
  if (table) return "";
  EXPECT_EQ(table.error().code, ErrorCode::kShardAudit);
  return ToText(table.error());
}

TEST(ProgramTable, AProgramAsTheContractHasIt_IsTaken) {
  Proves("R79 R80");
  for (const bool is_backward : {false, true}) {
    const KnownTensors known = KnownOfCut(PlanOf(), is_backward);
    const Result<ShardTable> table = MakeProgramTable(kMesh, known, Declared(known));
    ASSERT_TRUE(table.has_value()) << ToText(table.error());
    EXPECT_EQ(ToText(*table->Find("q")->spec), "(none, none, context, none)");
    EXPECT_EQ(table->Find("q")->tensor.dims, (std::vector<int64_t>{2, 8, 128, 16}));
    EXPECT_EQ(ToText(*table->Find("sink_logits")->spec), ToText(SpecAxes(1)));
    EXPECT_THAT(table->Find("slots_forward")->source, HasSubstr("the program's own"));
    EXPECT_EQ(ToText(*table->Find("lse")->spec), "(none, none, context)");
  }
  // By heads, outputs of rows are those of a device's heads, and so are sinks.
  const KnownTensors heads = KnownOfCut(PlanOf(Exchange::kHeads), false);
  const ShardTable table = MakeProgramTable(kMesh, heads, Declared(heads)).value();
  EXPECT_EQ(ToText(*table.Find("lse")->spec), "(none, context, none)");
  EXPECT_EQ(ToText(*table.Find("sink_logits")->spec), "(context)");
}

TEST(ProgramTable, AnotherProgram_IsRefusedWithTheFullList) {
  Proves("R80");
  const KnownTensors known = KnownOfCut(PlanOf(), false);
  DeclaredProgram program = Declared(known);
  Of(program.inputs, "k").axis = -1;      // replicated
  Of(program.inputs, "v").dims[2] = 120;  // not padded
  Of(program.inputs, "q").type = ElementType::kF32;
  Of(program.outputs, "lse").axis = 1;
  Of(program.inputs, "scale").name = "factor";
  const std::string all = Refused(known, program);
  EXPECT_THAT(all,
              AllOf(HasSubstr("BF16[2,4,128,16] cut along 2; the program has BF16[2,4,128,16] whole"),
                    HasSubstr("the program has BF16[2,4,120,8] cut along 2"), HasSubstr("the program has F32[2,8")));
  EXPECT_THAT(all, AllOf(HasSubstr("F32[2,8,128] cut along 2; the program has F32[2,8,128] cut along 1"),
                         HasSubstr("scale: a tensor of the program, which has none of that name")));
  DeclaredProgram uneven = Declared(known);
  Of(uneven.inputs, "slots_forward").dims = {63, 3};
  EXPECT_THAT(Refused(known, uneven), HasSubstr("a dimension 0 that divides by 4"));
}

// Arguments and results on one device, exactly.
TEST(ProgramTable, Ceiling_IsOfOneDevice) {
  const KnownTensors known = KnownOfCut(PlanOf(), false);
  const int64_t tokens = 2 * 32;                                        // of both batch rows
  const int64_t bytes = tokens * (8 * 16 + 4 * 16 + 4 * 8 + 8 * 8) * 2  // q, k, v, o
                        + 4 + 8 * 4 + tokens * 8 * 4                    // scale, sinks, lse
                        + 16 * 3 * 4 + 4;                               // a quarter of the table, and the count
  EXPECT_TRUE(MakeProgramTable(kMesh, known, Declared(known), bytes));
  EXPECT_THAT(Refused(known, Declared(known), bytes - 1), HasSubstr("bytes of a device: at most"));
}

TEST(ProgramTable, AxesOfHeadsAndRows) {
  const Contract contract = PlanOf().contract;
  for (const auto& [axis, cut] : {std::pair{kModelAxis, int64_t{1}}, std::pair{kDataAxis, int64_t{0}}}) {
    const KnownTensors known = KnownOfAxis(contract, axis, true);
    for (const ProgramTensor& input : known.inputs) {
      if (input.name == "q" || input.name == "delta") {
        EXPECT_EQ(input.axis, cut) << input.name;
      }
      if (input.name == "scale") {
        EXPECT_EQ(input.axis, -1);
      }
    }
    DeclaredProgram program = Declared(known);
    for (ProgramTensor& output : program.outputs) output.dims = {4, 8, 16};  // rows of tiles: of any shape
    const Mesh mesh{{{std::string(axis), 4}}};
    if (cut == 1) {
      EXPECT_TRUE(MakeProgramTable(mesh, known, program));
    }
    Of(program.outputs, "dk").axis = 2;
    EXPECT_FALSE(MakeProgramTable(mesh, known, program));
  }
}

}  // namespace
}  // namespace tessera::shard
