// Our declarations of the PJRT interface beside the header that a plugin's wheel ships, and beside what a plugin says
// of itself.
#include "pjrt/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "lanes/xla/pjrt/api_buffer.h"
#include "lanes/xla/pjrt/api_executable.h"
#include "lanes/xla/pjrt/call.h"
#include "pjrt/plugin_test.h"

namespace tessera::pjrt {
namespace {

std::span<const PjrtPlace> OurPlaces() {
  static constexpr PjrtPlace kPlaces[] = {
#define TESSERA_PJRT_STRUCT(Ours, Theirs) {#Theirs, "", 0, sizeof(api::Ours)},
#define TESSERA_PJRT_FIELD(Ours, Theirs, field) {#Theirs, #field, offsetof(api::Ours, field), sizeof(api::Ours::field)},
#define TESSERA_PJRT_SLOT(Ours, Theirs) \
  {#Theirs, "", offsetof(api::Table, slots) + 8 * api::Ours::kSlot, sizeof(void*)},
#include "pjrt/fields.def"
#undef TESSERA_PJRT_STRUCT
#undef TESSERA_PJRT_FIELD
#undef TESSERA_PJRT_SLOT
  };
  return kPlaces;
}

bool IsStruct(const PjrtPlace& place) { return *place.field == '\0' && place.offset == 0; }

TEST(Layout, EveryField_StandsInTheTable) {
  // The fields of a struct lie without a hole from its begin to its spare words, so none can have been left out.
  constexpr size_t kSpareBytes = api::kSpareWords * sizeof(uint64_t);
  const std::span<const PjrtPlace> places = OurPlaces();
  for (size_t i = 0; i < places.size(); ++i) {
    if (!IsStruct(places[i])) continue;
    SCOPED_TRACE(places[i].owner);
    size_t end = 0;
    for (size_t j = i + 1; j < places.size() && *places[j].field != '\0'; ++j) {
      EXPECT_LE(places[j].offset, (end + 7) / 8 * 8) << places[j].field;
      end = std::max(end, places[j].offset + places[j].size);
    }
    const size_t whole = (end + 7) / 8 * 8;
    EXPECT_TRUE(places[i].size == whole || places[i].size == whole + kSpareBytes) << end << " of " << places[i].size;
  }
}

TEST(Layout, Header_AgreesWithOurDeclarations) {
#ifdef TESSERA_PJRT_HEADER
  const std::span<const PjrtPlace> ours = OurPlaces();
  const std::span<const PjrtPlace> theirs = {kPjrtPlacesOfHeader, kNumPjrtPlacesOfHeader};
  ASSERT_EQ(ours.size(), theirs.size());
  ASSERT_GT(ours.size(), 200u);
  for (size_t i = 0; i < ours.size(); ++i) {
    SCOPED_TRACE(testing::Message() << ours[i].owner << "." << ours[i].field);
    EXPECT_STREQ(ours[i].owner, theirs[i].owner);
    EXPECT_STREQ(ours[i].field, theirs[i].field);
    EXPECT_EQ(ours[i].offset, theirs[i].offset);
    if (IsStruct(ours[i])) {
      EXPECT_GE(ours[i].size, theirs[i].size);
    } else {
      EXPECT_EQ(ours[i].size, theirs[i].size);
    }
  }
#else
  GTEST_SKIP() << "no pjrt_c_api.h was found at configure time: script/setup --xla installs it";
#endif
}

using LayoutOfPlugin = PluginTest;

TEST_F(LayoutOfPlugin, FunctionTable_HasEverySlotWeCall) {
  const api::Table& table = plugin().table();
  EXPECT_EQ(table.pjrt_api_version.struct_size, sizeof(api::Version));
  for (const PjrtPlace& place : OurPlaces()) {
    if (*place.field != '\0' || place.offset == 0) continue;
    EXPECT_LE(place.offset + place.size, table.struct_size) << place.owner;
    EXPECT_TRUE(HasSlot(table, static_cast<int>((place.offset - offsetof(api::Table, slots)) / 8))) << place.owner;
  }
}

}  // namespace
}  // namespace tessera::pjrt
