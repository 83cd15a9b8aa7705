// A model that is trained on packed rows: one definition for every machine. A Trainer compiles it once; documents,
// learning rate and step are data of its programs. docs/model.md explains it by an example.
//
// Goals: the loss of a document does not depend on what it is packed with; a run compiles the same programs whatever
// its batches hold; equal seeds, rows and machine give equal bits. Not a goal: a language for models of any kind.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/context.h"
#include "tessera/engine.h"
#include "tessera/error.h"
#include "tessera/model_spec.h"
#include "tessera/row_batch.h"
#include "tessera/shard.h"
#include "tessera/target.h"
#include "tessera/tensor.h"

#pragma GCC visibility push(default)
namespace tessera {

struct OptimizerOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // of all gradients together; 0: none
  bool operator==(const OptimizerOptions&) const = default;
};
// What changes from step to step: data of the programs.
struct StepScalars {
  double learning_rate = 0.0;
  int64_t step = 1;  // 1, 2, ...: of the moments' correction
};

// What stands for one of the layer spec's seven keys on a target: norm, linear_qkv, linear_proj, linear_fc1,
// linear_fc2, attention, layernorm_mlp.
struct Substitute {
  std::string key;
  std::string name;    // "none": the plain operations of the definition
  std::string reason;  // why this one
  bool operator==(const Substitute&) const = default;
};

struct TrainerOptions {
  OptimizerOptions optimizer = {};
  uint64_t seed = 0;
  std::string attention = "auto";  // or a substitute's name (docs/model.md): that one or an error
  // By key of the layer spec, as attention's: "auto", "none" or a name.
  std::map<std::string, std::string> substitutes = {};
  XlaOptions xla = {};
  int64_t barrier_every = 0;        // programs are cut after every so many layers, but the last; 0: nowhere
  int64_t threads = 0;              // of the cpu lane; 0: as many as the target has workers
  bool compile_only = false;        // programs are made, for a machine that need not be here, and nothing is run
  std::optional<Mesh> mesh = {};    // several devices share rows (data), tokens (context), heads and columns (model)
  std::optional<CutForm> cut = {};  // of a row's tokens over context; absent: chosen, as the next
  std::optional<Exchange> exchange = {};   // how a device comes by keys of others; not ring
  std::function<bool()> should_stop = {};  // asked before each program is made by Create, which then fails
  // Over a mesh: of arguments, results and what a program needs beside them on each device (TSR-S006).
  std::optional<int64_t> max_device_bytes = {};
};

// How a model is laid over the devices of a mesh, audited before launch and again as it was compiled.
struct ShardingUse {
  Mesh mesh;
  std::string fingerprint;  // of every tensor's name, type, shape and spec; keys of programs begin with it
  ShardFigures figures;     // of parameters, moments, gradients and buffers
  struct Program {
    std::string pass;
    std::vector<std::string> collectives;  // one line each, with the bytes it carries between devices
    int64_t carried_bytes = 0;             // of one trip of each, over all devices
    int64_t device_bytes = 0;              // of arguments and results
  };
  std::vector<Program> programs;
  std::optional<ContextUse> context = {};  // with an axis context: of the batches so far
};

struct StepResult {
  double loss = 0.0;       // nats per trained token, before the update
  double loss_sum = 0.0;   // nats
  double grad_norm = 0.0;  // of the mean loss, before clipping
  int64_t tokens = 0;      // trained: of the loss masks
  bool loss_finite = true;
  bool grads_finite = true;
  bool updated = true;  // false where gradients are not finite or there was no token: everything is as before
};
struct EvalResult {
  double loss_sum = 0.0;  // nats
  int64_t tokens = 0;
};
struct GradientsResult {
  double loss_sum = 0.0;
  int64_t tokens = 0;
  TensorMap gradients;  // of the sum of nats, by parameter
};

// Not for two threads at once.
class Trainer {
 public:
  // TSR-L008 where no plugin fits the target, TSR-L002 where a substitute that was asked for cannot run; with a mesh
  // TSR-S001, S002 and S005 before anything is compiled, and S006 where a program is not what the specs say.
  static Result<Trainer> Create(const Engine& engine, const ModelSpec& spec, const Target& target,
                                const TrainerOptions& options = {});
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;
  ~Trainer();

  // Gradients of all micro-batches, summed, over the number of their tokens; one update. A micro-batch has the spec's
  // rows and row_tokens, ids below the vocabulary (TSR-T002).
  Result<StepResult> Step(std::span<const RowBatch* const> micro_batches, const StepScalars& scalars);
  Result<EvalResult> Evaluate(const RowBatch& batch);
  Result<GradientsResult> Gradients(const RowBatch& batch);

  // Every parameter under its name, and its moments as "m." and "v." before it.
  Result<TensorMap> State() const;
  Result<TensorMap> Parameters() const;     // without the moments
  Status SetState(const TensorMap& state);  // TSR-T003 for a missing, unknown or ill-shaped one, or one not finite

  const ModelSpec& spec() const;
  const Target& target() const;
  const std::vector<Substitute>& substitutes() const;  // seven
  int64_t compiles() const;                            // programs made or loaded since Create; never more than three
  const std::vector<ProgramUse>& programs() const;     // one for each
  const DeviceUse& device() const;
  const std::optional<ShardingUse>& sharding() const;  // with a mesh of two devices or more
  std::vector<std::string> contract_keys() const;      // one for each distinct mask, in order, as class_keys
  std::vector<std::string> class_keys() const;
  const std::vector<std::string>& notes() const;  // precision plan, flags without effect: for a log

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The texts of the programs that a Trainer of the same arguments compiles, gradients, update and evaluate, with what
// each takes and gives and the TPU kernels inside. Needs no plugin, and nothing of the target's machine.
struct ModelPrograms {
  std::vector<ProgramText> programs;
  std::vector<Substitute> substitutes;  // seven
};
Result<ModelPrograms> LowerModel(const Engine& engine, const ModelSpec& spec, const Target& target,
                                 const TrainerOptions& options = {});

// "norm=cpu,linear_qkv=none" as TrainerOptions::substitutes. TSR-R007 for another form; TSR-L001 for a key or a name
// that there is none of, as CheckSubstitutes.
Result<std::map<std::string, std::string>> ParseSubstitutes(std::string_view text);
Status CheckSubstitutes(const std::map<std::string, std::string>& substitutes);

// Whether a substitute may stand for the product with a parameter: not for embeddings, heads, routers and their like,
// which SubstituteExclusions names by a part of the parameter's name.
bool MaySubstitute(std::string_view parameter);
std::span<const std::string_view> SubstituteExclusions();

}  // namespace tessera
#pragma GCC visibility pop
