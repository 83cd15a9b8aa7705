// Which of Highway's targets are compiled; included before foreach_target.h. Those that no machine would prefer are
// left out to keep the build short.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
