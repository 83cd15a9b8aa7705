// Receipts as trees of JSON, for whoever keeps them inside other documents.
#pragma once

#include "io/document.h"
#include "io/json_writer.h"
#include "tessera/receipt.h"

namespace tessera {

// One object with every field.
void WriteReceipt(const Receipt& receipt, JsonWriter& json);
// Schema and types only, as ParseReceiptFields.
Result<Receipt> ReadReceiptTree(DocumentValue tree);

}  // namespace tessera
