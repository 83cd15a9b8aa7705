// What stands for each key of the layer spec on a target, chosen once; and what there is to say of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lanes/xla/place.h"
#include "model/attention.h"
#include "model/layout.h"

namespace tessera::model {

struct Chosen {
  std::unique_ptr<AttentionSubstitute> attention;
  std::vector<Attention> attentions;  // by distinct mask
  std::string name;
  std::string reason;
};
// Kernels of our own where there are some for the target: called by a plugin that takes calls, or in the program; else
// loops of the program's own, and why. TSR-L002 where the one that was asked for cannot. Without a place the program is
// only written, and no plugin is asked.
struct AttentionRequest {
  const std::string& name;  // "auto", or a substitute's
  const TrainerOptions& options;
};
Result<Chosen> ChooseAttention(const Engine& engine, const Layout& layout, const Target& target,
                               const AttentionRequest& request, const lanes::xla::Place* place);
// The first that is tried for a target.
std::string_view PreferredAttention(const Target& target);

// All seven; `attention` as it was chosen, the others none.
std::vector<Substitute> SubstitutesOf(const std::string& attention, const std::string& reason);
// The precision plan, flags of other libraries that change nothing here, and the parameters whose products nothing may
// stand for.
std::vector<std::string> NotesOf(const ModelSpec& spec, const Target& target);

}  // namespace tessera::model
