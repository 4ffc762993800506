#include "comm/network/link/coded_sum.h"

#include <algorithm>
#include <array>

#include "kernels/rank_sum/rank_sum.h"

namespace tessera {
namespace {

// Summed at a time: two such buffers and the codes of a member stay in L1.
constexpr int64_t kSummedElements = 8 * kGradientBlock;
using SumBuffer = std::array<float, kSummedElements>;

// sums += values, or = if it is the first.
void add(bool is_first, const SumBuffer& values, int64_t count, SumBuffer* sums) {
  if (is_first) {
    std::copy_n(values.begin(), count, sums->begin());
    return;
  }
  const std::array<RankInput, 2> inputs = {sums->data(), values.data()};
  rank_sum(inputs, Update::kOverwrite, sums->data(), count, nullptr);
}

}  // namespace

void sum_gradient_blocks(GradientCode code, int num_members, const ContributionOf& blocks,
                         const bf16* own_errors, float* own, int64_t count) {
  SumBuffer sums, values;
  for (int64_t begin = 0; begin < count; begin += kSummedElements) {
    const int64_t size = std::min(kSummedElements, count - begin);
    for (int member = 0; member < num_members; ++member) {
      if (const std::byte* of_member = blocks(member)) {
        decode_gradient_blocks(code, of_member, count, begin, size, values.data());
      } else if (own_errors == nullptr) {
        std::copy_n(own + begin, size, values.begin());
      } else {
        const std::array<RankInput, 2> inputs = {own + begin, own_errors + begin};
        rank_sum(inputs, Update::kOverwrite, values.data(), size, nullptr);
      }
      add(member == 0, values, size, &sums);
    }
    std::copy_n(sums.begin(), size, own + begin);
  }
}

void sum_bf16(int num_members, const ContributionOf& values, bf16* own, int64_t count) {
  SumBuffer sums;
  for (int64_t begin = 0; begin < count; begin += kSummedElements) {
    const int64_t size = std::min(kSummedElements, count - begin);
    std::fill_n(sums.begin(), size, 0.0f);
    for (int member = 0; member < num_members; ++member) {
      const std::byte* const of_member = values(member);
      const bf16* const from = of_member == nullptr ? own : reinterpret_cast<const bf16*>(of_member);
      const std::array<RankInput, 2> inputs = {sums.data(), from + begin};
      rank_sum(inputs, Update::kOverwrite, sums.data(), size, nullptr);
    }
    round_to_bf16(sums.data(), own + begin, size, nullptr);
  }
}

}  // namespace tessera
