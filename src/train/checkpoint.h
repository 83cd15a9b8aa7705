// Checkpoints: parameters and moments as a safetensors file that says which model, data and schedule they belong to.
// Written under another name and renamed, so that every file of that name is whole.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tensor.h"
#include "tessera/train.h"

namespace tessera::train {

// What a checkpoint belongs to, as digests: another of any is another run.
struct RunIdentity {
  std::string model;
  std::string data;
  std::string schedule;  // all of [train] that the numbers depend on
  bool operator==(const RunIdentity&) const = default;
};
std::string ScheduleDigest(const TrainSpec& spec);

struct Checkpoint {
  RunIdentity identity;
  int64_t step = 0;   // that were made
  int64_t place = 0;  // in the order of rows
  int64_t tokens = 0;
  TensorMap state;
};
// "checkpoint-00000100.safetensors" in the folder of a run.
std::string CheckpointName(int64_t step);
Status WriteCheckpoint(const std::string& folder, const Checkpoint& checkpoint);
// TSR-T103 for what is no whole checkpoint, has a number that is not finite, or another name than its step's.
Result<Checkpoint> ReadCheckpoint(const std::string& path);
Result<Checkpoint> ParseCheckpoint(std::string_view bytes, const std::string& path);  // of any name
// The same as before a file is read: TSR-T104 names what differs.
Status CheckIdentity(const RunIdentity& found, const RunIdentity& wanted, const std::string& where);

// Steps of the checkpoints of a folder, ascending.
std::vector<int64_t> ListCheckpoints(const std::string& folder);
// All but the newest `keep`, and what a killed process left half written.
void RemoveOldCheckpoints(const std::string& folder, int64_t keep);

}  // namespace tessera::train
