// The built-in table of specs, and the stage after it.
#pragma once

#include "tessera/shard.h"

namespace tessera::shard {

// The table's spec for a row, by the names of its tensor and of the mesh's axes; or why there is none. A dimension
// whose axis the mesh has not is whole: the axes' names decide, and nothing else.
void PlaceByTable(const DeclaredModel& model, const Mesh& mesh, ShardRow& row);

// ZeRO-3, after tensor and expert axes: of a parameter that may be cut, the largest dimension which is free and divides
// by `data`. Never rounded, never a second time; dimensions below kMinZeroDim stay whole.
inline constexpr int64_t kMinZeroDim = 4;
void CutByZero3(const Mesh& mesh, ShardRow& row);

// Does `name` match a pattern in which `*` stands for any characters?
bool Matches(std::string_view pattern, std::string_view name);

}  // namespace tessera::shard
