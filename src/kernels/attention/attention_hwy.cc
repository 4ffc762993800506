#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/activation_type.h"
#include "kernels/attention/attention_impl.h"
#include "kernels/attention/attention_layout.h"
#include "kernels/update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/attention_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/attention/attention_backward-inl.h"
#include "kernels/attention/attention_forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

const AttentionKernels kKernels = {.forward = forward_hwy,
                                   .backward = backward_hwy,
                                   .cached = cached_hwy,
                                   .general_forward = general_forward_hwy,
                                   .general_backward = general_backward_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<AttentionKernels>> attention_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
