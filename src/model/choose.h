// What stands for each key of the layer spec on a target, chosen once; and what there is to say of it.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "lanes/xla/place.h"
#include "model/attention.h"
#include "model/layer.h"
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

inline constexpr std::string_view kAttentionKey = "attention";
// What was asked for of attention, in either place. TSR-R007 where the two differ.
Result<std::string> AskedAttention(const TrainerOptions& options);

struct ChosenLayer {
  LayerOps ops;
  std::array<Substitute, kLayerKeys.size()> told;
};
// The keys beside attention. TSR-L002 where one that was asked for cannot run, TSR-L001 for a key or name that is none.
struct LayerRequest {
  const TrainerOptions& options;
  std::string_view refusal;  // why nothing can be called, where a plugin has said so; empty: it has not
};
Result<ChosenLayer> ChooseLayer(const Engine& engine, const ModelSpec& spec, const Target& target,
                                const LayerRequest& request, const lanes::xla::Place* place);

// All seven, in the layer spec's order.
std::vector<Substitute> SubstitutesOf(const Chosen& attention, const ChosenLayer& layer);
// The precision plan, flags of other libraries that change nothing here, and the parameters whose products nothing may
// stand for.
std::vector<std::string> NotesOf(const ModelSpec& spec, const Target& target);

}  // namespace tessera::model
