// The schedules that libtpu writes of a program's TPU kernels where its environment asks for them: LIBTPU_INIT_ARGS
// with
// --xla_jf_dump_to=DIR, --xla_jf_dump_llo_text=true and --xla_jf_dump_llo_pass_label_regex=final. A count of
// instruction bundles is a schedule, never a time.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace tessera::pjrt {

// What is in the folder at the beginning is of others.
class Schedules {
 public:
  // `flags` as they stand in the environment; those that name no folder give no schedules.
  explicit Schedules(std::string_view flags);
  // Of all kernels that were scheduled since; -1 where nothing was written.
  int64_t Bundles() const;

 private:
  std::string folder_;
  std::set<std::string> before_;
};

// A fingerprint's bytes as two lower-case digits each.
std::string HexOf(std::string_view bytes);

}  // namespace tessera::pjrt
