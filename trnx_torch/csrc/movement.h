// Copies between strided boxes of memory: data moves, nothing is computed.
#pragma once

#include <ATen/core/Tensor.h>

namespace trnx {

// Copies the elements of `source` to `target`: one device, one dtype, one shape.
// Throws when elements of `target` share memory, or overlap `source` elsewhere.
void move_elements(const at::Tensor& source, const at::Tensor& target);

// Which elements an index picks. Rows: the index has one axis, and one value of it is a row of
// `inner` elements. Along: the index has the result's shape [outer, count, inner].
enum class Pick : int64_t { Rows, Along };

// result[o, k, :] = source[o, index[k], :], or result[o, k, i] = source[o, index[o, k, i], i].
// All are contiguous: source [outer, size, inner], result [outer, count, inner], index int64.
// Throws an IndexError for an index outside [0, size).
void gather_elements(
    const at::Tensor& result, const at::Tensor& source, const at::Tensor& index, Pick pick);
// target[o, index[k], :] = source[o, k, :], or along; where an index repeats the last one stays.
void scatter_elements(
    const at::Tensor& target, const at::Tensor& index, const at::Tensor& source, Pick pick);

} // namespace trnx
