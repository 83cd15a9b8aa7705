// See check.h.
#include "check.h"

#include "json_text.h"

namespace tessera::program {

Batch WithPicks(Batch batch, const std::optional<Picks>& picks) {
  if (picks) batch.picks = picks;
  return batch;
}

Result<CheckReport> CheckRun(const CheckedRun& run) {
  CheckOptions options;
  options.layout = run.layout;
  options.meter = run.meter;
  const bool is_reference = run.outcome.receipt.executed == "reference";
  options.arithmetic = is_reference ? Arithmetic::Double() : Arithmetic::Single();
  return CheckOutputs(run.contract, run.batch, run.inputs, run.outcome.outputs, options);
}

std::string ToJson(const CheckReport& report) {
  std::vector<std::string> outputs;
  for (const Comparison& output : report.outputs) {
    JsonObject object;
    object.Text("name", output.name).Bool("pass", output.pass).Real("max_error", output.max_error);
    object.Int("worst", output.worst).Real("got", output.got).Real("want", output.want);
    outputs.push_back(object.Real("tolerance", output.tolerance).Done());
  }
  std::vector<std::string> unchecked;
  for (const std::string& name : report.unchecked) unchecked.push_back(JsonString(name));
  JsonObject object;
  object.Bool("pass", report.pass).Bool("sampled", report.sampled).Raw("unchecked", JsonList(unchecked));
  return object.Raw("outputs", JsonList(outputs)).Done();
}

std::string CheckWord(const CheckReport& report) {
  if (!report.pass) return "failed";
  return report.sampled ? "passed on sampled rows" : "passed";
}

}  // namespace tessera::program
