// `tessera explain`: the mask in words, the tile map, what each stage did and why, the cleanup table; or one pair.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "dense_npy.h"
#include "json_text.h"
#include "metadata.h"
#include "program.h"
#include "tile_svg.h"
#include "words.h"

namespace tessera::program {
namespace {

struct Options {
  ProblemArguments problem;
  std::string at;
  std::string dump;
  std::string dense;
  std::string svg;
  int64_t batch_row = 0;
  int64_t head = 0;
  int64_t cleanups = 12;
  bool policy = false;
  bool ascii = false;
  bool json = false;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera explain examples/packed.toml --batch examples/packed_batch.json\n"
    "  tessera explain examples/packed.toml --batch examples/packed_batch.json --at 300,290\n"
    "  tessera explain examples/causal.toml --dump shrink\n"
    "  tessera explain packed.plan --head 3 --ascii\n"
    "  tessera explain packed.plan --dense mask.npy\n"
    "  tessera explain causal,window=1023:8192 --svg window.svg\n"
    "  tessera explain --policy";

// What is explained: a fresh plan with its contract and stages, or a plan file alone.
struct Subject {
  std::optional<Problem> problem;
  Plan plan;
  std::vector<StageReport> stages;
};

Result<Subject> ReadSubject(const Options& options) {
  Subject subject;
  if (IsPlanFile(options.problem.contract)) {
    auto plan = ReadPlan(options.problem.contract);
    if (!plan) return tl::unexpected(plan.error());
    subject.plan = std::move(*plan);
    return subject;
  }
  auto problem = ReadProblem(options.problem);
  if (!problem) return tl::unexpected(problem.error());
  problem->options.dump_stages = !options.dump.empty();
  auto result = PlanProblem(*problem);
  if (!result) return tl::unexpected(result.error());
  subject.problem = std::move(*problem);
  subject.plan = std::move(result->plan);
  subject.stages = std::move(result->stages);
  return subject;
}

Status CheckRange(const PlanView& plan, const Options& options) {
  if (options.batch_row < 0 || options.batch_row >= plan.batch) {
    return Fail(ErrorCode::kBadArgument,
                fmt::format("batch row {} is not one of 0..{}", options.batch_row, plan.batch - 1), "--batch-row");
  }
  if (options.head < 0 || options.head >= plan.num_q_heads) {
    return Fail(ErrorCode::kBadArgument, fmt::format("head {} is not one of 0..{}", options.head, plan.num_q_heads - 1),
                "--head");
  }
  return {};
}

struct Pair {
  int64_t q = 0;
  int64_t k = 0;
};

Result<Pair> PairOf(const PlanView& plan, const std::string& text) {
  const auto numbers = ParsePair(text, ',');
  if (!numbers) {
    return Fail(ErrorCode::kBadArgument, fmt::format("'{}' is not a pair: query,key, such as 300,290", text), "--at");
  }
  const Pair pair{numbers->first, numbers->second};
  if (pair.q < 0 || pair.q >= plan.q_len || pair.k < 0 || pair.k >= plan.kv_len) {
    return Fail(ErrorCode::kBadArgument,
                fmt::format("({}, {}) lies outside {} queries x {} keys", pair.q, pair.k, plan.q_len, plan.kv_len),
                "--at");
  }
  return pair;
}

std::string TokenInWords(const std::vector<int32_t>& docs, int64_t at, int64_t valid) {
  std::string text;
  if (!docs.empty()) {
    const int32_t doc = docs[static_cast<size_t>(at)];
    text += doc < 0 ? " is padding" : fmt::format(" is in document {}", doc);
  }
  if (at >= valid) text += fmt::format("{} beyond the valid {} tokens", text.empty() ? " is" : ",", valid);
  return text;
}

// Which tile decides about one pair, and how.
int ExplainPair(const PlanView& plan, const Options& options) {
  auto pair = PairOf(plan, options.at);
  if (!pair) return Report(pair.error(), options.json);
  const Worklist& worklist = plan.Of(Direction::kForward);
  const auto row = static_cast<uint64_t>(pair->q / worklist.tile_q);
  const auto column = static_cast<uint32_t>(pair->k / worklist.tile_kv);
  const uint64_t mask = plan.mask_of[static_cast<size_t>(options.batch_row * plan.num_q_heads + options.head)];
  const TokenFacts facts = SpreadTokenFacts(plan, options.batch_row);
  const Slot* slot = nullptr;
  for (const Slot& candidate : worklist.Row(mask * worklist.rows_per_mask + row)) {
    if (candidate.index == column) slot = &candidate;
  }
  const bool allowed = slot != nullptr && TileAllows(plan, worklist, slot->cleanup, facts, pair->q, pair->k);
  const std::string kind = slot == nullptr ? "empty" : slot->cleanup == 0 ? "full" : "partial";

  std::string text = fmt::format("query {} {} key {} (batch row {}, head {})\n", pair->q,
                                 allowed ? "sees" : "does not see", pair->k, options.batch_row, options.head);
  const std::string query = TokenInWords(facts.q_doc, pair->q, facts.q_valid);
  const std::string key = TokenInWords(facts.kv_doc, pair->k, facts.kv_valid);
  if (!query.empty()) text += fmt::format("  query {}{}\n", pair->q, query);
  if (!key.empty()) text += fmt::format("  key {}{}\n", pair->k, key);
  text += fmt::format("  forward tile ({}, {}) of {}x{} is {}", row, column, worklist.tile_q, worklist.tile_kv, kind);
  if (slot == nullptr) {
    text += ": it is not in the worklist, so no lane looks at it\n";
  } else if (slot->cleanup == 0) {
    text += ": every pair in it is allowed\n";
  } else {
    text += fmt::format(" and names cleanup {}; a pair passes when any line does:\n", slot->cleanup);
    for (const CleanupItem& item : plan.Cleanup(slot->cleanup)) text += "    " + ItemInWords(plan, item) + "\n";
    text += fmt::format("  in that tile the pair is row {}, key {}\n", pair->q % worklist.tile_q,
                        pair->k % worklist.tile_kv);
  }
  if (options.json) {
    JsonObject object;
    object.Int("q", pair->q).Int("k", pair->k).Int("batch_row", options.batch_row).Int("head", options.head);
    object.Bool("allowed", allowed).Text("tile_kind", kind);
    object.Raw("tile", fmt::format("[{},{}]", row, column)).Int("cleanup", slot == nullptr ? 0 : slot->cleanup);
    Print(object.Done() + "\n");
  }
  options.json ? PrintError(text) : Print(text);
  return kGood;
}

std::string MaskText(const Contract& contract) {
  std::string text;
  const std::vector<MaskExpr>& heads = contract.mask.heads;
  for (size_t head = 0; head < heads.size(); ++head) {
    if (head > 0 && heads[head] == heads[head - 1]) continue;
    size_t last = head;
    while (last + 1 < heads.size() && heads[last + 1] == heads[head]) ++last;
    std::string name = "mask";
    if (heads.size() > 1)
      name += last == head ? fmt::format(" of head {}", head) : fmt::format(" of heads {}..{}", head, last);
    text += fmt::format("{}: {}\n", name, ToText(heads[head]));
    text += "a query sees a key when\n" + Indented(MaskInWords(heads[head], contract.mask.offset), "  ");
  }
  return text;
}

std::string CleanupTable(const PlanView& plan, int64_t most) {
  std::vector<int64_t> users(plan.NumCleanups(), 0);
  for (const Slot& slot : plan.Of(Direction::kForward).slots) ++users[slot.cleanup];
  std::string text =
      fmt::format("cleanups: {}. What a partial tile still tests; rows and keys count from the tile's first\n",
                  Grouped(int64_t{plan.NumCleanups()} - 1));
  int64_t shown = 0;
  int64_t left_out = 0;
  for (uint32_t id = 1; id < plan.NumCleanups(); ++id) {
    if (users[id] == 0) continue;  // used by another direction's tile size only
    if (++shown > most) {
      ++left_out;
      continue;
    }
    bool first = true;
    for (const CleanupItem& item : plan.Cleanup(id)) {
      const std::string head = first ? fmt::format("{:>4} {:>6} x", id, Grouped(users[id])) : "            or";
      text += fmt::format("{:<13} {}\n", head, ItemInWords(plan, item));
      first = false;
    }
  }
  if (left_out > 0) text += fmt::format("     ... and {} more (--cleanups N shows N)\n", Grouped(left_out));
  return text;
}

int ExplainJson(const Subject& subject) {
  std::vector<std::string> stages;
  for (const StageReport& stage : subject.stages) {
    JsonObject object;
    object.Text("name", stage.name).Int("ns", stage.ns).Bool("disabled", stage.disabled).Text("summary", stage.summary);
    if (!stage.dump.empty()) object.Text("dump", stage.dump);
    stages.push_back(object.Done());
  }
  JsonObject object;
  if (subject.problem) {
    std::vector<std::string> masks;
    for (const MaskExpr& expr : subject.problem->contract.mask.heads) {
      JsonObject mask;
      mask.Text("expr", ToText(expr)).Text("words", MaskInWords(expr, subject.problem->contract.mask.offset));
      masks.push_back(mask.Done());
    }
    object.Raw("masks", JsonList(masks));
    object.Text("target", subject.problem->target.name);
    AddMetadata(object, subject.plan.view(), subject.problem->target);
    PrintError(LeakNotes(subject.problem->contract));
  }
  object.Raw("stages", JsonList(stages)).Raw("plan", ToJson(subject.plan.view()));
  Print(object.Done() + "\n");
  return kGood;
}

int ExplainPlan(const Subject& subject, const Options& options) {
  const PlanView& plan = subject.plan.view();
  std::string text;
  if (subject.problem) text += MaskText(subject.problem->contract) + LeakNotes(subject.problem->contract) + "\n";
  // A cell is two characters and the left margin about ten.
  text += DrawTiles(plan, options.batch_row, options.head, (TerminalColumns() - 12) / 2, 32);
  const auto count = static_cast<size_t>(plan.batch * plan.num_q_heads);
  const std::span<const uint32_t> mask_of = plan.mask_of;
  int64_t same = 0;
  for (size_t i = 0; i < count; ++i) {
    if (mask_of[i] == mask_of[static_cast<size_t>(options.batch_row * plan.num_q_heads + options.head)]) ++same;
  }
  text += fmt::format("{}this map serves {} of {} (batch row, head) pairs; the plan holds {} distinct\n\n",
                      std::string(9, ' '), same, count, plan.num_masks);
  text += Summary(plan);
  if (subject.problem) text += "\n" + MetadataLine(plan, subject.problem->target, &*subject.problem);
  if (!subject.stages.empty()) {
    text += "\nstages\n";
    for (const StageReport& stage : subject.stages) {
      text += fmt::format("  {:<10} {}\n", stage.name, stage.disabled ? "disabled by request" : stage.summary);
    }
  }
  text += "\n" + CleanupTable(plan, options.cleanups);
  options.ascii ? Print(ToAscii(text)) : PrintMap(text);
  return kGood;
}

bool HasRun(const Subject& subject, const std::string& name) {
  return std::any_of(subject.stages.begin(), subject.stages.end(),
                     [&](const StageReport& stage) { return stage.name == name; });
}

int Dump(const Subject& subject, const Options& options) {
  for (const StageReport& stage : subject.stages) {
    if (stage.name != options.dump) continue;
    Print(stage.dump);
    if (!stage.dump.empty() && stage.dump.back() != '\n') Print("\n");
    return kGood;
  }
  std::string names;
  const auto is_asked = [&](const StageInfo& stage) { return stage.name == options.dump; };
  if (std::any_of(Stages().begin(), Stages().end(), is_asked)) {
    return Report(
        Error{ErrorCode::kStageUnknown,
              fmt::format("stage '{}' did not run: the mask does not depend on picks of its making", options.dump),
              "--dump",
              {}},
        options.json);
  }
  for (const StageInfo& stage : Stages()) names += (names.empty() ? "" : ", ") + stage.name;
  return Report(Error{ErrorCode::kStageUnknown,
                      fmt::format("there is no stage '{}': one of {}", options.dump, names),
                      "--dump",
                      {}},
                options.json);
}

// What the rest of the arguments leaves without use.
Status CheckArguments(const Command& command, const Options& options) {
  if (options.policy) return command.AllowOnly("--policy", {"--policy", "--json"});
  if (IsPlanFile(options.problem.contract)) {
    Status ok = command.AllowOnly("a .plan file", {"contract", "--at", "--head", "--batch-row", "--dump", "--dense",
                                                   "--svg", "--cleanups", "--ascii", "--json"});
    if (!ok) return ok;
  }
  // The map of one head, and the list under it, are drawn where nothing else is asked for.
  std::vector<std::string> unused = {"--cleanups", "--ascii"};
  if (options.at.empty() && options.dense.empty() && options.svg.empty())
    unused.insert(unused.end(), {"--head", "--batch-row"});
  if (!options.at.empty()) {
    unused.push_back("--dump");
    return command.Refuse("--at", unused);
  }
  if (!options.dump.empty()) return command.Refuse("--dump", unused);
  return options.json ? command.Refuse("--json", unused) : Status();
}

int Explain(const Command& command, const Options& options) {
  if (Status ok = CheckArguments(command, options); !ok) return Report(ok.error(), options.json);
  if (options.policy) {
    Print(MixedDocumentPolicyJson() + "\n");
    return kGood;
  }
  if (options.problem.contract.empty()) {
    return Report(Error{ErrorCode::kBadArgument, "give a contract, a .plan file or --policy", "tessera explain", {}},
                  options.json);
  }
  auto subject = ReadSubject(options);
  if (!subject) return Report(subject.error(), options.json);
  if (auto range = CheckRange(subject->plan.view(), options); !range) return Report(range.error(), options.json);
  if (!options.dense.empty()) {
    auto written = WriteDenseNpy(options.dense, subject->plan.view(), options.batch_row, options.head);
    if (!written) return Report(written.error(), options.json);
  }
  if (!options.svg.empty()) {
    const std::string picture = TileSvg(subject->plan.view(), options.batch_row, options.head);
    if (auto written = WriteFile(options.svg, picture); !written) return Report(written.error(), options.json);
  }
  if (!options.at.empty()) return ExplainPair(subject->plan.view(), options);
  if (!options.dump.empty() && subject->stages.empty()) {
    return Report(Error{ErrorCode::kBadArgument, "a plan file keeps no stage dumps: give the contract", "--dump", {}},
                  options.json);
  }
  if (!options.dump.empty() && (!options.json || !HasRun(*subject, options.dump))) return Dump(*subject, options);
  return options.json ? ExplainJson(*subject) : ExplainPlan(*subject, options);
}

}  // namespace

void AddExplain(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub = app.AddCommand("explain", "Draw the tile map and say what each stage did and why");
  AddContract(*sub, options->problem.contract, ", or a .plan file");
  AddProblemOptions(*sub, options->problem);
  AddRouteOptions(*sub, options->problem);
  sub->AddOption("--at", options->at, "Say whether query Q may see key K, and what decides it")->TypeName("Q,K");
  sub->AddNumber("--head", options->head, {}, "Query head to draw or ask about")->TypeName("N")->ShowDefault();
  sub->AddNumber("--batch-row", options->batch_row, {}, "Batch row to draw or ask about")->TypeName("N")->ShowDefault();
  sub->AddOption("--dump", options->dump, "Print one stage's result as text")->TypeName("STAGE");
  sub->AddOption("--dense", options->dense, "Also write the plan decompressed to a [q_len, kv_len] mask")
      ->Writes("F.npy");
  sub->AddOption("--svg", options->svg, "Also draw the tile map as a picture")->Writes("F.svg");
  sub->AddNumber("--cleanups", options->cleanups, {}, "How many cleanups to list")->TypeName("N")->ShowDefault();
  sub->AddFlag("--policy", options->policy, "Print how tiles with several documents are treated, as JSON");
  sub->AddFlag("--ascii", options->ascii, "Draw with plain characters");
  sub->AddFlag("--json", options->json, "Print one JSON document");
  sub->Footer(kFooter);
  sub->OnParsed([options, sub, &action] { action = [options, sub] { return Explain(*sub, *options); }; });
}

}  // namespace tessera::program
