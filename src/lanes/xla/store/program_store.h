// Compiled programs on disk, so that a second process compiles nothing. One file per program, named by the hash of its
// key and holding the key in full. Nothing here is ever an error of a run: what cannot be read, is damaged or belongs
// to another key is passed over with a reason and replaced by the next Put; a folder that cannot be written is a reason
// too.
//
// Any number of threads and processes may use one folder at once: files appear whole under their names, and whoever
// finds one gets the bytes of one Put. Not for secrets or hostile neighbours: who can write the folder can run code
// anyway.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lanes/xla/store/limits.h"

namespace tessera::lanes::xla {

// Everything that decides which bytes a compiler gives. Each part is any text, up to kMaxProgramKeyBytes.
struct ProgramKey {
  std::string program;  // hash of the program's text
  std::string options;  // hash of the compile options
  std::string plugin;   // platform, versions, and what tells one build of the plugin from another
  std::string host;     // HostFeatures(), or the accelerator compiled for
  // Of several devices: which of them has what of each tensor (ShardKey); recorded with the entry and no part of its
  // name, so that a program that was kept for another layout is found, told (TSR-S007) and not used.
  std::string layout = {};
  bool operator==(const ProgramKey&) const = default;
};

struct FindResult {
  std::optional<std::vector<std::byte>> bytes;
  // Why an entry that is there was passed over; empty for a hit and where there is none.
  std::string reason;
};

struct PutResult {
  bool is_stored = false;
  std::string reason;       // why not; empty when stored
  int64_t num_removed = 0;  // entries that had to make room
};

class ProgramStore {
 public:
  // The folder is made by the first Put. A limit of 0 bytes is a store that finds and keeps nothing.
  explicit ProgramStore(std::string folder, int64_t max_bytes = kMaxProgramStoreBytes);

  FindResult Find(const ProgramKey& key) const;
  // When the store grows over its limit, those entries go that nobody put or found for the longest time.
  PutResult Put(const ProgramKey& key, std::span<const std::byte> bytes) const;

  std::string EntryPath(const ProgramKey& key) const;
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  int64_t max_bytes_;
};

}  // namespace tessera::lanes::xla
