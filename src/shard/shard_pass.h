// What running and compiling over several devices share: the devices, and what a receipt says of a pass.
#pragma once

#include <string>
#include <vector>

#include "lanes/xla/pjrt/program.h"
#include "lanes/xla/place.h"
#include "shard/audit_program.h"
#include "shard/context_program.h"
#include "tessera/shard_run.h"

namespace tessera::shard {

// TSR-L008 where there is no plugin for them, TSR-S002 where there are too few.
Result<lanes::xla::Place> OpenDevices(const Engine& engine, XlaOptions xla, const Target& target, int64_t devices,
                                      bool compile_only);

void DescribePass(ContextPass pass, const std::string& name, const std::string& text, const ShardTable& table,
                  ShardPass& out);
Status ReadFigures(const pjrt::CompiledProgram& program, ShardPass& out);
// Of a pass whose figures were read.
ProgramLimits LimitsOf(const ShardRunOptions& options, const ShardPass& pass);
// Collectives, what they carry, and what an all-gather would. TSR-S006 for one of a type or in a loop whose bytes
// cannot be told.
Status CountBytes(const ContextPlan& plan, ContextPass pass, const std::vector<CarriedCollective>& carried,
                  ShardPass& out);

}  // namespace tessera::shard
