// Where libtpu writes the schedules of what it compiles.
#pragma once

#include <string>

namespace tessera::program {

// Has it write them to a folder that goes when this does, unless the user named one. It reads its environment when it
// is loaded, so this must be there before the engine.
class ScheduleFolder {
 public:
  ScheduleFolder();
  ~ScheduleFolder();
  ScheduleFolder(const ScheduleFolder&) = delete;
  ScheduleFolder& operator=(const ScheduleFolder&) = delete;
  // The user's own, or this one's; empty where none could be made.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_own_ = false;
};

}  // namespace tessera::program
