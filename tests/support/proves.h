// Names the requirement (R) and bug (B) numbers a test proves; script/requirements lists which have a passing test.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tessera {

// Call first in a test body: Proves("R5 R9 B17").
inline void Proves(const std::string& numbers) { testing::Test::RecordProperty("proves", numbers); }

}  // namespace tessera
