#include "movement.h"

#include "launch.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstring>

namespace trnx {
namespace {

struct Axis {
  int64_t size, target, source; // strides in elements
};
using Axes = c10::SmallVector<Axis, 6>;

constexpr int64_t kTile = 32; // elements on a side of a turned block: both sides stay in the cache

template <typename Word>
void move_row(Word* target, const Word* source, const Axis& axis) {
  if (axis.target == 1 && axis.source == 1) {
    std::memcpy(target, source, static_cast<size_t>(axis.size) * sizeof(Word));
    return;
  }
  for (int64_t i = 0; i < axis.size; ++i) {
    target[i * axis.target] = source[i * axis.source];
  }
}

// Two axes, the first dense in the source and the second in the target.
template <typename Word>
void move_turned(Word* target, const Word* source, const Axis& first, const Axis& second) {
  for (int64_t a = 0; a < first.size; a += kTile) {
    const auto a_end = std::min(a + kTile, first.size);
    for (int64_t b = 0; b < second.size; b += kTile) {
      const auto b_end = std::min(b + kTile, second.size);
      for (int64_t i = a; i < a_end; ++i) {
        for (int64_t k = b; k < b_end; ++k) {
          target[i * first.target + k * second.target] =
              source[i * first.source + k * second.source];
        }
      }
    }
  }
}

template <typename Word>
void move_box(Word* target, const Word* source, const Axis* axes, int64_t rank) {
  if (rank == 1) {
    return move_row(target, source, axes[0]);
  }
  if (rank == 2 && axes[0].source == 1 && axes[1].source != 1) {
    return move_turned(target, source, axes[0], axes[1]);
  }
  for (int64_t i = 0; i < axes[0].size; ++i) {
    move_box(target + i * axes[0].target, source + i * axes[0].source, axes + 1, rank - 1);
  }
}

struct Pair {
  uint64_t low, high;
};

// Pointers: target, source. Registers: bytes per element, then size, target stride and source stride
// of every axis, outermost first.
int32_t move_kernel(void* const* pointers, const int64_t* registers) {
  const int64_t rank = registers[1];
  const auto* axes = reinterpret_cast<const Axis*>(registers + 2);
  const auto run = [&](auto word) {
    using Word = decltype(word);
    move_box(static_cast<Word*>(pointers[0]), static_cast<const Word*>(pointers[1]), axes, rank);
  };
  switch (registers[0]) {
    case 1:
      run(uint8_t{});
      return 0;
    case 2:
      run(uint16_t{});
      return 0;
    case 4:
      run(uint32_t{});
      return 0;
    case 8:
      run(uint64_t{});
      return 0;
    default:
      run(Pair{});
      return 0;
  }
}

struct Picked {
  int64_t outer, count, inner, size; // elements; `size` is the indexed axis of the other side
};

// Moves between `whole` [outer, size, inner] and `part` [outer, count, inner].
template <typename Word, bool kGather>
bool move_picked(Word* whole, Word* part, const int64_t* index, const Picked& box, Pick pick) {
  for (int64_t o = 0; o < box.outer; ++o) {
    Word* const own = whole + o * box.size * box.inner;
    for (int64_t k = 0; k < box.count; ++k) {
      Word* const row = part + (o * box.count + k) * box.inner;
      const int64_t* const places = index + (o * box.count + k) * box.inner;
      for (int64_t i = 0; i < box.inner; ++i) {
        const int64_t place = pick == Pick::Rows ? index[k] : places[i];
        if (place < 0 || place >= box.size) {
          return false;
        }
        Word* const other = own + place * box.inner;
        if (pick == Pick::Rows) {
          std::memcpy(kGather ? row : other, kGather ? other : row,
                      static_cast<size_t>(box.inner) * sizeof(Word));
          break;
        }
        if (kGather) {
          row[i] = other[i];
        } else {
          other[i] = row[i];
        }
      }
    }
  }
  return true;
}

// Pointers: whole, part, index. Registers: bytes per element, outer, count, inner, size, pick.
template <bool kGather>
int32_t pick_kernel(void* const* pointers, const int64_t* registers) {
  const Picked box{registers[1], registers[2], registers[3], registers[4]};
  const auto run = [&](auto word) {
    using Word = decltype(word);
    return move_picked<Word, kGather>(
        static_cast<Word*>(pointers[0]), static_cast<Word*>(pointers[1]),
        static_cast<const int64_t*>(pointers[2]), box, static_cast<Pick>(registers[5]));
  };
  const int64_t bytes = registers[0];
  const bool good = bytes == 1 ? run(uint8_t{})
      : bytes == 2             ? run(uint16_t{})
      : bytes == 4             ? run(uint32_t{})
      : bytes == 8             ? run(uint64_t{})
                               : run(Pair{});
  return good ? 0 : kIndexOutOfRange;
}

void pick_elements(
    KernelFunction kernel, const at::Tensor& whole, const at::Tensor& part, const at::Tensor& index,
    Pick pick, const char* name) {
  const auto aligned = [](const at::Tensor& tensor) { return tensor.is_contiguous(); };
  TORCH_CHECK_VALUE(
      whole.dim() == 3 && part.dim() == 3 && aligned(whole) && aligned(part) && aligned(index) &&
          index.scalar_type() == c10::ScalarType::Long && whole.dtype() == part.dtype() &&
          whole.size(0) == part.size(0) && whole.size(2) == part.size(2) &&
          index.numel() == (pick == Pick::Rows ? part.size(1) : part.numel()),
      name, " takes contiguous tensors [outer, size, inner] and [outer, count, inner] of one dtype ",
      "and int64 indices.");
  if (part.numel() == 0) {
    return;
  }
  call_kernel(
      kernel,
      {const_cast<void*>(whole.const_data_ptr()), const_cast<void*>(part.const_data_ptr()),
       const_cast<void*>(index.const_data_ptr())},
      0,
      {whole.element_size(), part.size(0), part.size(1), part.size(2), whole.size(1),
       static_cast<int64_t>(pick)},
      name);
}

Axes collapsed(const at::Tensor& source, const at::Tensor& target) {
  Axes axes;
  for (int64_t d = 0; d < target.dim(); ++d) {
    if (target.size(d) != 1) {
      axes.push_back({target.size(d), target.stride(d), source.stride(d)});
    }
  }
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    return a.target > b.target;
  });
  Axes merged;
  for (const auto& axis : axes) {
    if (!merged.empty() && merged.back().target == axis.size * axis.target &&
        merged.back().source == axis.size * axis.source) {
      merged.back() = {merged.back().size * axis.size, axis.target, axis.source};
    } else {
      merged.push_back(axis);
    }
  }
  if (merged.empty()) {
    merged.push_back({1, 1, 1});
  }
  // The axis that is dense in the source goes next to the innermost, to be turned in blocks.
  if (merged.size() > 2 && merged.back().source != 1) {
    const auto dense = std::find_if(
        merged.begin(), merged.end() - 1, [](const Axis& axis) { return axis.source == 1; });
    if (dense != merged.end() - 1) {
      std::rotate(dense, dense + 1, merged.end() - 1);
    }
  }
  return merged;
}

} // namespace

void move_elements(const at::Tensor& source, const at::Tensor& target) {
  at::assert_no_internal_overlap(target);
  at::assert_no_partial_overlap(target, source);
  const auto axes = collapsed(source, target);
  c10::SmallVector<int64_t, 20> registers{
      target.element_size(), static_cast<int64_t>(axes.size())};
  for (const auto& axis : axes) {
    registers.insert(registers.end(), {axis.size, axis.target, axis.source});
  }
  call_kernel(
      &move_kernel,
      {target.mutable_data_ptr(), const_cast<void*>(source.const_data_ptr())}, 0, registers,
      "copy");
}

void gather_elements(
    const at::Tensor& result, const at::Tensor& source, const at::Tensor& index, Pick pick) {
  pick_elements(&pick_kernel<true>, source, result, index, pick, "gather");
}

void scatter_elements(
    const at::Tensor& target, const at::Tensor& index, const at::Tensor& source, Pick pick) {
  pick_elements(&pick_kernel<false>, target, source, index, pick, "scatter");
}

} // namespace trnx
