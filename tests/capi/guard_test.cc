// The wall between C++ and C: whatever a body throws becomes an error value.
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

#include "capi/handles.h"

namespace tessera::capi {
namespace {

struct Caught {
  int status = 0;
  std::string code, message, where;
};

template <class Body>
Caught CatchFrom(Body body) {
  tessera_error* error = nullptr;
  Caught caught{Guard("tessera_test", &error, body), tessera_error_code(error), tessera_error_message(error),
                tessera_error_where(error)};
  EXPECT_EQ(error == nullptr, caught.status == 0);
  EXPECT_EQ(Guard("tessera_test", nullptr, body), caught.status) << "also for a caller who wants no error";
  tessera_error_free(error);
  return caught;
}

TEST(Guard, GoodBody_LeavesNoError) {
  tessera_error* error = reinterpret_cast<tessera_error*>(1);
  EXPECT_EQ(Guard("tessera_test", &error, []() -> Status { return {}; }), 0);
  EXPECT_EQ(error, nullptr);
}

TEST(Guard, Error_PassesThrough) {
  const Caught caught = CatchFrom([]() -> Status { return BadArgument("tessera_test", "x is NULL"); });
  EXPECT_EQ(caught.code, "TSR-A001");
  EXPECT_EQ(caught.message, "x is NULL");
  EXPECT_EQ(caught.where, "tessera_test");
}

TEST(Guard, MemoryThatRunsOut_IsAnErrorThatIsAlwaysThere) {
  EXPECT_EQ(CatchFrom([]() -> Status { throw std::bad_alloc(); }).code, "TSR-R009");
  EXPECT_EQ(CatchFrom([]() -> Status { throw std::length_error("vector"); }).code, "TSR-R009");
  tessera_error* first = nullptr;
  tessera_error* second = nullptr;
  ReportNoMemory(&first);
  ReportNoMemory(&second);
  EXPECT_EQ(first, second);
  tessera_error_free(first);  // does nothing, so that the second is still good
  EXPECT_STREQ(tessera_error_code(second), CodeText(ErrorCode::kTooLarge).data());
  EXPECT_STRNE(tessera_error_text(second), "");
}

TEST(Guard, OtherExceptions_AreDefectsWithTheirText) {
  const Caught caught = CatchFrom([]() -> Status { throw std::runtime_error("surprise"); });
  EXPECT_EQ(caught.status, 1);
  EXPECT_EQ(caught.code, "TSR-P008");
  EXPECT_NE(caught.message.find("surprise"), std::string::npos);
  EXPECT_EQ(caught.where, "tessera_test");
  EXPECT_EQ(CatchFrom([]() -> Status { throw 7; }).code, "TSR-P008");
}

}  // namespace
}  // namespace tessera::capi
