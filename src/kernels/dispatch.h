// Selects the implementation of each kernel that runs on this machine. Every kernel has one table, best
// first; the first entry that is not refused is used. TESSERA_ISA limits the choice, so that every path can
// be tested and compared on one machine.
//
//   struct RmsNormKernels { void (*forward_bf16)(...); ... };            // in rmsnorm_impl.h
//   const DispatchTable<RmsNormKernels>& rmsnorm_table() {               // in rmsnorm.cc
//     static const DispatchTable<RmsNormKernels> table("rmsnorm", concat(rmsnorm_hwy(), rmsnorm_ref()));
//     return table;
//   }
//   void rmsnorm(...) { rmsnorm_table().chosen().forward_bf16(...); }
//
// Tests loop over table.usable(), which lists every implementation this machine can run.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tessera {

// Instruction sets an implementation may require, weakest first. A machine with one level has all before it.
enum class Isa {
  kRef,         // plain C++, the specification
  kBaseline,    // Highway's code for the compiler's baseline (with GCC 12 on x86-64: scalar)
  kAvx2,        // with FMA and F16C
  kAvx512,      // F, BW, CD, DQ, VL
  kAvx512Bf16,  // rounding to bf16, dot products of bf16 pairs
  kAmxBf16,     // tiles, with the kernel's permission
};

std::string_view isa_name(Isa isa);                   // "avx512_bf16"
std::optional<Isa> parse_isa(std::string_view name);  // nullopt if unknown; avx3 = avx512, amx = amx_bf16
std::string isa_names();                              // "ref, baseline, avx2, ..." for messages

// Why this processor or system cannot run code for `isa`; "" if it can.
std::string machine_refusal(Isa isa);
// The strongest level that is not refused.
Isa strongest_isa();

// The strongest instruction set allowed: TESSERA_ISA if set, otherwise kAmxBf16. A kernel without an
// implementation for exactly this level uses its best one below. Read once. Throws Error(kBadConfig) if the
// name is unknown or the machine lacks the instruction set.
Isa isa_limit();

// Why code for `isa` may not run in this process (the machine's refusal or TESSERA_ISA); "" if it may.
std::string isa_refusal(Isa isa);

// Parses the text of TESSERA_ISA for isa_limit().
Isa parse_isa_limit(std::string_view value);

// One row of a table. `refusal` returns reasons beyond the ISA, "" = usable; may be null.
template <typename Kernels>
struct Implementation {
  std::string_view name;  // "ref", "hwy", "onednn"
  Isa isa;
  Kernels kernels;
  std::string (*refusal)() = nullptr;
};

// One implementation of a kernel as `tessera doctor` prints it.
struct ImplementationReport {
  std::string name;     // "hwy"
  Isa isa;              //
  std::string refusal;  // "" = usable
};
struct KernelReport {
  std::string kernel;  // "rmsnorm"
  std::vector<ImplementationReport> implementations;
  size_t chosen;  // index into implementations
};

template <typename Kernels>
class DispatchTable {
 public:
  // Resolves immediately. Throws Error(kBadConfig) from isa_limit(). The last entry must be usable
  // everywhere.
  DispatchTable(std::string_view kernel, std::vector<Implementation<Kernels>> implementations)
      : kernel_(kernel), implementations_(std::move(implementations)) {
    chosen_ = implementations_.size();
    for (size_t i = 0; i < implementations_.size(); ++i) {
      refusals_.push_back(refusal_of(implementations_[i]));
      if (refusals_[i].empty() && chosen_ == implementations_.size()) chosen_ = i;
    }
    TESSERA_CHECK(chosen_ < implementations_.size(), "kernel {} has no implementation", kernel_);
  }

  const Kernels& chosen() const { return implementations_[chosen_].kernels; }
  const Implementation<Kernels>& chosen_implementation() const { return implementations_[chosen_]; }

  // Every implementation that is not refused: what tests compare.
  std::vector<Implementation<Kernels>> usable() const {
    std::vector<Implementation<Kernels>> result;
    for (size_t i = 0; i < implementations_.size(); ++i) {
      if (refusals_[i].empty()) result.push_back(implementations_[i]);
    }
    return result;
  }

  KernelReport report() const {
    KernelReport report{std::string(kernel_), {}, chosen_};
    for (size_t i = 0; i < implementations_.size(); ++i) {
      report.implementations.push_back(
          {std::string(implementations_[i].name), implementations_[i].isa, refusals_[i]});
    }
    return report;
  }

 private:
  static std::string refusal_of(const Implementation<Kernels>& implementation) {
    std::string reason = isa_refusal(implementation.isa);
    if (reason.empty() && implementation.refusal != nullptr) reason = implementation.refusal();
    return reason;
  }

  std::string_view kernel_;
  std::vector<Implementation<Kernels>> implementations_;
  std::vector<std::string> refusals_;  // one per implementation
  size_t chosen_ = 0;
};

template <typename Kernels>
std::vector<Implementation<Kernels>> concat(std::vector<Implementation<Kernels>> first,
                                            const std::vector<Implementation<Kernels>>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Why code compiled for Highway's target AVX3_DL cannot run here; "" if it can. Does not ask Highway, which
// trusts what the processor reports.
std::string avx3_dl_refusal();
// Likewise for products of 8-bit tiles, which a machine may lack beside those of bf16.
std::string amx_int8_refusal();

// Null = not compiled. AVX3_DL, AVX-512 as in Ice Lake, also stands for processors that round to bf16 in
// hardware.
template <typename Kernels, typename Avx512Bf16, typename Avx512, typename Avx2>
std::vector<Implementation<Kernels>> hwy_table(Avx512Bf16 avx512_bf16, Avx512 avx512, Avx2 avx2,
                                               const Kernels* baseline) {
  std::vector<Implementation<Kernels>> table;
  const auto append = [&](const Kernels* kernels, Isa isa, std::string (*refusal)() = nullptr) {
    if (kernels != nullptr) table.push_back({"hwy", isa, *kernels, refusal});
  };
  append(avx512_bf16, Isa::kAvx512Bf16, avx3_dl_refusal);
  append(avx512, Isa::kAvx512);
  append(avx2, Isa::kAvx2);
  append(baseline, Isa::kBaseline);
  return table;
}

}  // namespace tessera

// Entries of a dispatch table for every target that Highway compiled in this file, best first. `kernels` is a
// variable of type const Kernels defined in each target's namespace (HWY_NAMESPACE). Use it after
// HWY_AFTER_NAMESPACE(), inside #if HWY_ONCE, in the namespace that encloses HWY_NAMESPACE:
//
//   std::vector<Implementation<RmsNormKernels>> rmsnorm_hwy() { return TESSERA_HWY_TABLE(kKernels); }
#define TESSERA_HWY_TABLE(kernels)                                                                      \
  ::tessera::hwy_table(HWY_CHOOSE_AVX3_DL(kernels), HWY_CHOOSE_AVX3(kernels), HWY_CHOOSE_AVX2(kernels), \
                       &HWY_STATIC_DISPATCH(kernels))
