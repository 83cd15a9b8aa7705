// `tessera export`: a contract in, the arrays of another library's kernel out.
#include <fmt/format.h>

#include <memory>

#include "program.h"
#include "tessera/export.h"

namespace tessera::program {
namespace {

struct Options {
  std::string contract;
  BatchArguments batch;
  std::string to;
  std::string tile;
  std::string direction = "forward";
  std::string mask = "function";
  std::string segments = "runtime";
  bool no_shrink = false;
  std::string out;
  bool json = false;
  ExportOptions values;
};

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera export --to splash examples/causal.toml --tile 512x512\n"
    "  tessera export --to splash examples/packed.toml --batch examples/packed_batch.json --segments baked "
    "--batch-row 0 --json\n"
    "  tessera export --to splash examples/packed.toml --batch examples/packed_batch.json --segments skip "
    "--fixed-shapes --batch-row 0\n"
    "  tessera export --to flex examples/packed.toml --batch examples/packed_batch.json --out packed.safetensors\n\n"
    "docs/use_with_splash.md and docs/use_with_flex.md hand the arrays to the real kernels.";

std::string ShapeText(const Tensor& tensor) { return fmt::format("[{}]", fmt::join(tensor.shape, ", ")); }

std::string Summary(const Export& exported) {
  std::string text = fmt::format("{} {}, tile {}x{}\n\n", ToText(exported.library), ToText(exported.direction),
                                 exported.tile.q, exported.tile.kv);
  int64_t bytes = 0;
  for (const ExportArray& array : exported.arrays) {
    text += fmt::format("{:<22} {}\n", array.name,
                        array.value ? fmt::format("{:<5} {:<20} {}", ToText(array.value->type), ShapeText(*array.value),
                                                  Bytes(static_cast<int64_t>(array.value->bytes.size())))
                                    : "none");
    if (array.value) bytes += static_cast<int64_t>(array.value->bytes.size());
  }
  const int64_t visited = exported.tiles.partial + exported.tiles.full;
  text += fmt::format("\ntiles        {} of {} visited: {} partial, {} full\narrays       {}\n", Grouped(visited),
                      Grouped(visited + exported.tiles.empty), Grouped(exported.tiles.partial),
                      Grouped(exported.tiles.full), Bytes(bytes));
  if (exported.mask_function) text += "mask         computed in the kernel; no tile is stored\n";
  if (exported.needs_segment_ids) {
    text += fmt::format("segment ids  the kernel needs them at run time{}\n",
                        exported.segment_ids ? "; those of the batch are in the output" : "");
  }
  return text;
}

Result<ExportOptions> ToExportOptions(const Options& options) {
  ExportOptions out = options.values;
  Result<Library> library = ParseLibrary(options.to);
  if (!library) return tl::unexpected(std::move(library.error()));
  out.to = *library;
  if (!options.tile.empty()) {
    Result<TileSize> tile = ParseTile(options.tile);
    if (!tile) return tl::unexpected(std::move(tile.error()));
    out.tile = *tile;
  }
  out.direction = options.direction == "dkv" ? Direction::kDkv : Direction::kForward;
  out.store_tiles = options.mask == "stored";
  if (options.segments == "baked") out.segments = Segments::kBaked;
  if (options.segments == "skip") out.segments = Segments::kSkip;
  out.shrink = !options.no_shrink;
  return out;
}

// The library refuses what it is told and cannot do; these it is always told, so only here is it known who said them.
Status CheckArguments(const Command& command, const Options& options) {
  if (options.to == "pallas") return command.Refuse("--to pallas", {"--direction", "--mask"});
  return options.to == "flex" ? command.Refuse("--to flex", {"--direction", "--mask", "--batch-row"}) : Status();
}

int WriteExport(const Command& command, const Options& options) {
  if (Status ok = CheckArguments(command, options); !ok) return Report(ok.error(), options.json);
  Result<ExportOptions> chosen = ToExportOptions(options);
  if (!chosen) return Report(chosen.error(), options.json);
  Result<Contract> contract = ReadContractArgument(options.contract);
  if (!contract) return Report(contract.error(), options.json);
  Result<Batch> batch = ReadBatchArguments(options.batch, *contract);
  if (!batch) return Report(batch.error(), options.json);
  Result<Export> exported = MakeExport(*contract, *batch, *chosen);
  if (!exported) return Report(WithBatchAdvice(exported.error(), *batch), options.json);
  if (!options.out.empty()) {
    Status written = WriteSafetensors(options.out, ToTensors(*exported));
    if (!written) return Report(written.error(), options.json);
  }
  std::string text = Summary(*exported);
  if (!options.out.empty()) text += fmt::format("\nwrote {}\n", options.out);
  if (options.json) {
    PrintError(text);
    Print(ToJson(*exported));
  } else {
    Print(text);
  }
  return kGood;
}

}  // namespace

void AddExport(Command& app, Action& action) {
  auto options = std::make_shared<Options>();
  Command* sub =
      app.AddCommand("export", "Write a plan in the arrays of Splash, Tokamax, FlexAttention or a Pallas kernel");
  AddContract(*sub, options->contract)->Required();
  sub->AddOption("--to", options->to,
                 "splash (JAX), tokamax, flex (PyTorch FlexAttention) or pallas (a kernel of your own)")
      ->TypeName("LIBRARY")
      ->Required();
  AddBatchArguments(*sub, options->batch);
  sub->AddOption("--tile", options->tile, "Tile size; default: the contract's")->TypeName("QxKV");
  sub->AddOption("--direction", options->direction, "forward (and dq), or dkv; flex and pallas hold both")
      ->OneOf({"forward", "dkv"})
      ->ShowDefault();
  sub->AddOption("--mask", options->mask,
                 "function: masks that the kernel can compute store no tiles; stored: every partial tile as bits")
      ->OneOf({"function", "stored"})
      ->ShowDefault();
  sub->AddOption(
         "--segments", options->segments,
         "runtime: documents and validity stay segment ids; baked: they enter the arrays, and the tiles between "
         "documents are skipped; skip: those tiles are skipped, segment ids and the kernel's mask function do the "
         "rest, "
         "and no tile is stored")
      ->OneOf({"runtime", "baked", "skip"})
      ->ShowDefault();
  sub->AddFlag("--fixed-shapes", options->values.fixed_shapes,
               "Every array at the capacities of the contract's class: the same shapes and types for every batch");
  sub->AddFlag("--widen-class", options->values.widen_class,
               "With --fixed-shapes: a batch that does not fit its class gets a wider class, not an error");
  const auto add_shards = [&](const char* name, int64_t& shards, const char* about) {
    sub->AddNumber(name, shards, {1}, about)->TypeName("N");
  };
  add_shards("--head-shards", options->values.head_shards, "splash: devices the heads are split over");
  add_shards("--q-shards", options->values.q_shards, "splash, tokamax: devices the queries are split over");
  add_shards("--kv-shards", options->values.kv_shards, "tokamax: devices the keys are split over");
  sub->AddFlag("--no-shrink", options->no_shrink, "splash: keep empty tiles in the grid");
  sub->AddFlag("--dynamic-grid", options->values.dynamic_grid, "tokamax: lists of active tiles, not the whole grid");
  sub->AddNumber("--batch-row", options->values.batch_row, {},
                 "splash, tokamax, pallas: the row to export when rows differ")
      ->TypeName("N");
  sub->AddOption("--out", options->out, "Write the arrays to this file")->Writes("FILE.safetensors");
  sub->AddFlag("--json", options->json, "Print the arrays as one JSON document");
  sub->Footer(kFooter);
  sub->OnParsed([options, sub, &action] { action = [options, sub] { return WriteExport(*sub, *options); }; });
}

}  // namespace tessera::program
