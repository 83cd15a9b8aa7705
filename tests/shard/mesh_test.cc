// Meshes: names and sizes of axes, the numbers of devices, the groups that collectives are made of, and bad ones.
#include "support/proves.h"
#include "tables.h"

namespace tessera {
namespace {

std::string FaultOf(const std::string& text) {
  const Result<Mesh> mesh = ParseMesh(text);
  EXPECT_FALSE(mesh.has_value()) << text;
  if (mesh) return {};
  EXPECT_EQ(mesh.error().code, ErrorCode::kMeshInvalid) << text;
  return ToText(mesh.error());
}

TEST(Mesh, EveryShape_RoundTripsAndIsAskedByName) {
  Proves("R81");
  for (const char* text : {"data=4", "data=2,model=2", "data=2,expert=4", "data=2,expert=2,model=2", "data=2,context=4",
                           "data=2,expert=2,context=2,model=2", "context=8", "data=1"}) {
    EXPECT_EQ(ToText(MakeMesh(text)), text);
  }
  const Mesh mesh = MakeMesh("data=2,expert=3,model=4");
  EXPECT_EQ(mesh.NumDevices(), 24);
  EXPECT_EQ(mesh.SizeOf("expert"), 3);
  EXPECT_EQ(mesh.SizeOf("context"), 1);
  EXPECT_TRUE(mesh.Has("model"));
  EXPECT_FALSE(mesh.Has("context"));
}

TEST(Mesh, Devices_AreNumberedRowMajor) {
  const Mesh mesh = MakeMesh("context=4,model=2");
  EXPECT_EQ(mesh.Coordinates(5), (std::vector<int64_t>{2, 1}));
  using Groups = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(mesh.Groups({"context"}), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(mesh.Groups({"model"}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(mesh.Groups({"context", "model"}), (Groups{{0, 1, 2, 3, 4, 5, 6, 7}}));
  EXPECT_EQ(mesh.Groups({}).size(), 8u);
}

TEST(Mesh, BadTexts_AreRefusedWithEveryFault) {
  for (const char* text : {"", ",", "data", "data=", "=2", "data=2,", "data=x", "data=2x", "data= 2", "data=+2",
                           "data=99999999999999999999", "data=2;model=2"}) {
    EXPECT_NE(FaultOf(text).find("TSR-S001"), std::string::npos) << text;
  }
  EXPECT_NE(FaultOf("data=0").find("1 to 65536, not 0"), std::string::npos);
  EXPECT_NE(FaultOf("data=-2").find("not -2"), std::string::npos);
  EXPECT_NE(FaultOf("data=2,data=2").find("each name once"), std::string::npos);
  EXPECT_NE(FaultOf("data=2,tensor=2").find("one of data, expert, context, model"), std::string::npos);
  EXPECT_NE(FaultOf("data=65536,model=2").find("65536 devices in all"), std::string::npos);
  EXPECT_NE(FaultOf("data=65536,expert=65536,context=65536,model=65536").find("in all"), std::string::npos);
  const std::string both = FaultOf("data=0,pipeline=2,pipeline=3");
  EXPECT_NE(both.find("not 0"), std::string::npos) << both;
  EXPECT_NE(both.find("pipeline"), std::string::npos) << both;
  EXPECT_NE(both.find("each name once"), std::string::npos) << both;
  EXPECT_FALSE(CheckMesh(Mesh{}).has_value());
}

TEST(Mesh, Picture_HasEveryDeviceInItsPlace) {
  EXPECT_EQ(DrawMesh(MakeMesh("data=2,expert=2,model=3")),
            "                  model 0 .. 2\n"
            "data 0, expert 0  [ 0][ 1][ 2]\n"
            "data 0, expert 1  [ 3][ 4][ 5]\n"
            "data 1, expert 0  [ 6][ 7][ 8]\n"
            "data 1, expert 1  [ 9][10][11]\n");
  EXPECT_EQ(DrawMesh(MakeMesh("data=2")), "  data 0 .. 1\n  [0][1]\n");
  const std::string large = DrawMesh(MakeMesh("data=1024,model=64"));
  EXPECT_LT(large.size(), 8000u);
  EXPECT_TRUE(Has(large, "1,024 lines in all")) << large;
}

TEST(Mesh, AnotherNumberOfDevices_IsNoLaunch) {
  Proves("R80");
  const Mesh mesh = MakeMesh("data=2,model=2");
  EXPECT_TRUE(CheckLaunch(mesh, 4).has_value());
  for (const int64_t devices : {0, 2, 8}) {
    const Status launch = CheckLaunch(mesh, devices);
    ASSERT_FALSE(launch.has_value()) << devices;
    EXPECT_EQ(launch.error().code, ErrorCode::kMeshDevices) << devices;
  }
  EXPECT_NE(ToText(CheckLaunch(mesh, 2).error()).find("needs 4 devices and there are 2"), std::string::npos);
}

}  // namespace
}  // namespace tessera
