// Names the requirement (R) and bug (B) numbers a test proves; script/requirements lists which are proved.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tessera {

// Call first in a test body: Proves("R5 R9 B17").
inline void Proves(const std::string& numbers) { testing::Test::RecordProperty("proves", numbers); }

}  // namespace tessera
