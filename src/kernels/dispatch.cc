#include "kernels/dispatch.h"

#include <array>
#include <cstdlib>

#include "platform/cpu.h"

namespace tessera {
namespace {

struct IsaName {
  std::string_view name;
  Isa isa;
};

constexpr std::array<IsaName, 6> kIsaNames = {{{"ref", Isa::kRef},
                                               {"baseline", Isa::kBaseline},
                                               {"avx2", Isa::kAvx2},
                                               {"avx512", Isa::kAvx512},
                                               {"avx512_bf16", Isa::kAvx512Bf16},
                                               {"amx_bf16", Isa::kAmxBf16}}};
// Highway's name and a shorter one.
constexpr std::array<IsaName, 2> kIsaAliases = {{{"avx3", Isa::kAvx512}, {"amx", Isa::kAmxBf16}}};

std::string refusal_unless(bool has, std::string_view what) {
  if (has) return "";
  const std::string& fault = cpu_features().fault;
  return fault.empty() ? fmt::format("the processor or the system has no {}", what) : fault;
}

}  // namespace

std::string_view isa_name(Isa isa) { return kIsaNames[static_cast<size_t>(isa)].name; }

std::optional<Isa> parse_isa(std::string_view name) {
  for (const IsaName& known : kIsaNames) {
    if (known.name == name) return known.isa;
  }
  for (const IsaName& alias : kIsaAliases) {
    if (alias.name == name) return alias.isa;
  }
  return std::nullopt;
}

std::string isa_names() {
  std::string text;
  for (const IsaName& known : kIsaNames) {
    if (!text.empty()) text += ", ";
    text += known.name;
  }
  return text;
}

std::string machine_refusal(Isa isa) {
  const CpuFeatures& cpu = cpu_features();
  switch (isa) {
    case Isa::kRef:
    case Isa::kBaseline:
      return "";
    case Isa::kAvx2:
      return refusal_unless(cpu.avx2, "AVX2 with FMA and F16C");
    case Isa::kAvx512:
      return refusal_unless(cpu.avx512, "AVX-512 (F, BW, CD, DQ, VL)");
    case Isa::kAvx512Bf16:
      return refusal_unless(cpu.avx512_bf16, "AVX-512 BF16");
    case Isa::kAmxBf16:
      return request_amx_permission().reason;
  }
  TESSERA_CHECK(false, "isa {}", static_cast<int>(isa));
  return "";
}

Isa strongest_isa() {
  Isa isa = Isa::kAmxBf16;
  while (!machine_refusal(isa).empty()) isa = static_cast<Isa>(static_cast<int>(isa) - 1);
  return isa;
}

std::string avx3_dl_refusal() {
  return refusal_unless(cpu_features().avx512_dl, "AVX-512 VBMI, VBMI2, BITALG and VPOPCNTDQ");
}

std::string amx_int8_refusal() { return refusal_unless(cpu_features().amx_int8, "AMX INT8"); }

std::string isa_refusal(Isa isa) {
  return isa > isa_limit() ? fmt::format("TESSERA_ISA={} allows less", isa_name(isa_limit()))
                           : machine_refusal(isa);
}

Isa parse_isa_limit(std::string_view value) {
  const std::optional<Isa> isa = parse_isa(value);
  if (!isa) {
    fail(ExitCode::kBadConfig, "TESSERA_ISA: expected one of {}; found '{}'", isa_names(), value);
  }
  const std::string refusal = machine_refusal(*isa);
  if (!refusal.empty()) {
    fail(ExitCode::kBadConfig, "TESSERA_ISA={} cannot be used here: {}", value, refusal);
  }
  return *isa;
}

Isa isa_limit() {
  static const Isa limit = [] {
    const char* value = std::getenv("TESSERA_ISA");
    return value == nullptr || *value == '\0' ? Isa::kAmxBf16 : parse_isa_limit(value);
  }();
  return limit;
}

}  // namespace tessera
