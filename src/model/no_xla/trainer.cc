// What a build without the XLA lanes says to somebody who wants to train.
#include "tessera/model.h"

namespace tessera {

struct Trainer::Impl {
  ModelSpec spec;
  Target target;
  std::vector<Substitute> substitutes;
  std::vector<ProgramUse> programs;
  std::vector<std::string> notes;
  DeviceUse device;
  std::optional<ShardingUse> sharding;
};

namespace {

tl::unexpected<Error> NotBuilt() {
  return Fail(ErrorCode::kPluginUnusable, "models are compiled by XLA, which this build was made without");
}

}  // namespace

Result<Trainer> Trainer::Create(const Engine&, const ModelSpec&, const Target&, const TrainerOptions&) {
  return NotBuilt();
}
Result<ModelPrograms> LowerModel(const Engine&, const ModelSpec&, const Target&, const TrainerOptions&) {
  return NotBuilt();
}
Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;
Result<StepResult> Trainer::Step(std::span<const RowBatch* const>, const StepScalars&) { return NotBuilt(); }
Result<EvalResult> Trainer::Evaluate(const RowBatch&) { return NotBuilt(); }
Result<GradientsResult> Trainer::Gradients(const RowBatch&) { return NotBuilt(); }
Result<TensorMap> Trainer::State() const { return NotBuilt(); }
Result<TensorMap> Trainer::Parameters() const { return NotBuilt(); }
Status Trainer::SetState(const TensorMap&) { return NotBuilt(); }
const ModelSpec& Trainer::spec() const { return impl_->spec; }
const Target& Trainer::target() const { return impl_->target; }
const std::vector<Substitute>& Trainer::substitutes() const { return impl_->substitutes; }
int64_t Trainer::compiles() const { return 0; }
const std::vector<ProgramUse>& Trainer::programs() const { return impl_->programs; }
const DeviceUse& Trainer::device() const { return impl_->device; }
const std::optional<ShardingUse>& Trainer::sharding() const { return impl_->sharding; }
const std::vector<std::string>& Trainer::notes() const { return impl_->notes; }
std::vector<std::string> Trainer::contract_keys() const { return {}; }
std::vector<std::string> Trainer::class_keys() const { return {}; }

}  // namespace tessera
