// The log of a run, log.jsonl: one line for each logging step, written whole with every checkpoint.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/train.h"

namespace tessera {
class JsonWriter;
}

namespace tessera::train {

// What telemetry says of each layer, as a list: in the log and in receipts.
void WriteTelemetry(const std::vector<LayerTelemetry>& layers, JsonWriter& json);

std::string ToJsonl(const std::vector<LogPoint>& points);
// Points up to a step: what comes after it belongs to steps that are made again. A line that is none of ours is left
// out, because a log is no part of what a run depends on.
std::vector<LogPoint> ParseLog(std::string_view text, int64_t last_step);

// Whether a receipt tells of a run that finished with that state.
bool IsFinishedWith(std::string_view receipt_json, std::string_view state_digest);

// A page with plots of a run, in one file that needs no network.
std::string ToHtml(const TrainReceipt& receipt, const std::vector<LogPoint>& points);

}  // namespace tessera::train
