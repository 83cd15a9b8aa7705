// Run files: any text gives an error with its fields, or a run whose numbers are within their bounds.
#include "fuzz.h"
#include "tessera/train.h"

namespace tessera {

bool FuzzRunFile(const uint8_t* data, size_t size) {
  const auto run = ParseRunFile(AsText(data, size), "folder");
  if (!run) {
    Require(!ToText(run.error()).empty(), "an error has a text");
    return false;
  }
  Require(Validate(run->model).empty(), "the model is good");
  Require(run->train.steps >= 1 && run->train.micro_batches >= 1 && run->train.keep >= 1, "there is something to do");
  Require(run->train.final_rate >= 0.0 && run->train.final_rate <= 1.0, "a rate is a fraction of another");
  Require(run->data.files.empty() != run->data.rows.empty(), "files or rows");
  const auto again = ParseModel(ToToml(run->model));
  Require(again && *again == run->model && Digest(*again) == Digest(run->model), "the model's text is the model");
  return true;
}

}  // namespace tessera
