// Tensors to a device and back. Inputs go as they lie; outputs come as f32 and are rounded once to what the caller
// wants.
#pragma once

#include <cstddef>
#include <span>

#include "lanes/check_args.h"
#include "lanes/xla/pjrt/client.h"
#include "tessera/tensor.h"

namespace tessera::lanes::xla {

Result<pjrt::Buffer> UploadTensor(pjrt::Client& client, const TensorRef& tensor, const TensorAxes& axes,
                                  int64_t device);
// `staging` has room for the buffer, which is f32 and has these axes.
Status DownloadTensor(const pjrt::Buffer& buffer, const TensorRef& into, const TensorAxes& axes,
                      std::span<std::byte> staging);

// Sum of o * do per row, in double; 0 for rows without keys, whose o and do are not looked at.
void FillDelta(const TensorRef& o, const TensorRef& dout, std::span<const float> lse, const TensorAxes& axes,
               std::span<float> delta);

}  // namespace tessera::lanes::xla
