// The structs that several calls take, as the library takes them.
#pragma once

#include <string_view>

#include "capi/handles.h"
#include "tessera/prepare.h"
#include "tessera/run_tensors.h"

namespace tessera::capi {

// NULL are the defaults; fields are called "options->...".
Result<AttentionOptions> ReadAttentionOptions(const tessera_attention_options* given, std::string_view where);

// A view of one tensor, called `name` in errors.
Result<TensorRef> ReadTensor(const tessera_tensor& tensor, const Shape& shape, std::string_view name,
                             std::string_view where);
// A null pointer is a tensor that is not given.
Result<TensorRef> ReadTensorAt(const tessera_tensor* tensor, const Shape& shape, std::string_view name,
                               std::string_view where);
Result<RunTensors> ReadArgs(const tessera_args* given, const Shape& shape, std::string_view where);

// What the call's options say, NULL the defaults; receipt and batch are left to the caller.
Result<CallOptions> ReadCallOptions(const tessera_call_options* given, std::string_view where);

}  // namespace tessera::capi
