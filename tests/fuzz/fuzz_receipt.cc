// Receipt files: any text gives an error or a receipt that holds its own rules. A receipt has dozens of fields that
// must all be there, so the input is also read as changes: a JSON object whose fields replace those of a good receipt.
#include <nlohmann/json.hpp>

#include "fuzz.h"
#include "tessera/tessera.h"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

Json GoodReceipt() {
  const auto contract = ParseContract(
      "version = 1\n[shape]\nq_len = 12\ndim_qk = 4\n[mask]\nexpr = \"causal and window(5, 0)\"\n[tiles]\nq = 4\nkv = "
      "4\nreason = \"a small plan\"\n");
  Require(contract.has_value(), "the fixed contract is good");
  RunOptions options;
  options.backward = true;
  options.input_source = "seed 1";
  options.digests = true;
  const RunOutcome outcome = Run(Engine(), *contract, {}, MakeInputs(*contract, 1, true), *FindTarget("cpu"), options);
  Require(!outcome.error.has_value(), "the fixed run is good");
  Json json = Json::parse(ToJson(outcome.receipt), nullptr, false);
  Require(json.is_object(), "a receipt is one JSON object");
  return json;
}

bool CheckText(std::string_view text) {
  const auto receipt = ParseReceipt(text);
  if (!receipt) {
    Require(!ToText(receipt.error()).empty(), "an error has a text");
    return false;
  }
  Require(CheckReceipt(*receipt).empty(), "what the parser accepts is consistent");
  const std::string printed = ToJson(*receipt);
  const auto again = ParseReceipt(printed);
  Require(again.has_value(), "JSON round trip");
  Require(ToJson(*again) == printed, "the text of a receipt reproduces it");
  (void)ToLine(*receipt);
  return true;
}

}  // namespace

bool FuzzReceipt(const uint8_t* data, size_t size) {
  static const Json good = GoodReceipt();
  const std::string_view text = AsText(data, size);
  const bool is_receipt = CheckText(text);
  const Json changes = Json::parse(text, nullptr, false);
  if (!changes.is_object()) return is_receipt;
  Json changed = good;
  for (const auto& [key, value] : changes.items()) {
    if (value.is_null()) {
      changed.erase(key);
    } else {
      changed[key] = value;
    }
  }
  return CheckText(changed.dump()) || is_receipt;
}

}  // namespace tessera
