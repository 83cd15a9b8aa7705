// Errors as text: the catalogue is complete and unique, and a person sees code, place and every violation.
#include "tessera/error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

namespace tessera {
namespace {

// TSR-, the letter of an area, three digits.
bool IsCodeText(std::string_view text) {
  constexpr std::string_view kAreas = "CPXLRADMTS";
  return text.size() == 8 && text.substr(0, 4) == "TSR-" && kAreas.find(text[4]) != std::string_view::npos &&
         std::all_of(text.begin() + 5, text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

TEST(Error, EveryCode_HasItsOwnNumberAndMeaning) {
  std::set<std::string> texts;
  int count = 0;
#define TESSERA_ERROR(name, text, meaning)             \
  EXPECT_EQ(CodeText(ErrorCode::name), text);          \
  EXPECT_EQ(CodeMeaning(ErrorCode::name), meaning);    \
  EXPECT_EQ(static_cast<int>(ErrorCode::name), count); \
  EXPECT_TRUE(IsCodeText(text)) << text;               \
  texts.insert(text);                                  \
  ++count;
#include "tessera/error_codes.def"
#undef TESSERA_ERROR
  EXPECT_EQ(static_cast<int>(texts.size()), count);
}

TEST(Error, CodeOutOfRange_IsNamedAndNotRead) { EXPECT_EQ(CodeText(static_cast<ErrorCode>(60000)), "TSR-????"); }

TEST(Error, ToText_ShowsPlaceAndViolations) {
  const Error plain{ErrorCode::kFileRead, "it is gone", "a.toml", {}};
  EXPECT_EQ(ToText(plain), "TSR-R002 at a.toml: it is gone");
  const Error placeless{ErrorCode::kLaneUnknown, "no lane is named x", "", {}};
  EXPECT_EQ(ToText(placeless), "TSR-L001: no lane is named x");
  const Result<int> failed =
      Fail(ErrorCode::kContractInvalid, {{"shape.batch", "at least 1"}, {"tiles.q", "a multiple of 8"}}, "c.toml");
  EXPECT_EQ(ToText(failed.error()),
            "TSR-C003 at c.toml: the contract breaks one or more rules\n"
            "  shape.batch: at least 1\n"
            "  tiles.q: a multiple of 8");
}

}  // namespace
}  // namespace tessera
