#include "train/calibration.h"

#include <algorithm>
#include <cmath>

#include "base/sha256.h"
#include "io/json_writer.h"
#include "tessera/io.h"

namespace tessera::train {
namespace {

std::string PathOf(const std::string& folder) { return folder + "/failed.txt"; }

}  // namespace

std::string CalibrationText(const CalibrationInputs& inputs) {
  std::vector<std::string_view> features(inputs.features.begin(), inputs.features.end());
  std::sort(features.begin(), features.end());
  const Parallelism& p = inputs.parallelism;
  JsonWriter json;
  json.BeginObject().Key("code").Text(inputs.code).Key("features").BeginArray();
  for (const std::string_view feature : features) json.Text(feature);
  json.EndArray().Key("hardware").Text(inputs.hardware).Key("model").Text(inputs.model);
  json.Key("parallelism").BeginObject().Key("accum").Int(p.accum).Key("ckpt").Bool(p.ckpt);
  json.Key("device_batch").Int(p.device_batch).Key("dp").Int(p.dp).Key("ep").Int(p.ep);
  json.Key("fsdp").Bool(p.fsdp).Key("tp").Int(p.tp).EndObject().EndObject();
  return json.Take();
}

std::string CalibrationSignature(const CalibrationInputs& inputs) { return Sha256(CalibrationText(inputs)); }

double StartupDelta(double peak, double estimate) { return std::round((peak - estimate) * 100.0) / 100.0; }

std::vector<std::string> ReadFailed(const std::string& folder) {
  std::vector<std::string> lines;
  const auto text = ReadFile(PathOf(folder));
  if (!text) return lines;
  for (size_t begin = 0; begin < text->size();) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    if (end > begin) lines.push_back(text->substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

void AddFailed(const std::string& folder, const std::string& signature) {
  std::string text;
  for (const std::string& line : ReadFailed(folder)) {
    if (line == signature) return;
    text += line + "\n";
  }
  // A note for the next run: without it that one finds out for itself.
  if (!WriteFile(PathOf(folder), text + signature + "\n")) return;
}

}  // namespace tessera::train
