#include "kernels/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/registry.h"
#include "platform/cpu.h"

namespace tessera {
namespace {

struct FakeKernels {
  int id;
};

TEST(Dispatch, NamesAndAliasesParse) {
  for (const Isa isa :
       {Isa::kRef, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  }
  EXPECT_EQ(parse_isa("avx3"), Isa::kAvx512);
  EXPECT_EQ(parse_isa("amx"), Isa::kAmxBf16);
  EXPECT_EQ(parse_isa("AVX2"), std::nullopt);
  EXPECT_EQ(isa_names(), "ref, baseline, avx2, avx512, avx512_bf16, amx_bf16");
}

TEST(Dispatch, UnknownLimitIsAConfigurationError) {
  try {
    parse_isa_limit("avx1024");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    EXPECT_THAT(error.what(), testing::HasSubstr("'avx1024'"));
    EXPECT_THAT(error.what(), testing::HasSubstr(isa_names()));
  }
}

TEST(Dispatch, LimitFailsExactlyWhereTheMachineRefuses) {
  for (const Isa isa :
       {Isa::kRef, Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    if (machine_refusal(isa).empty()) {
      EXPECT_EQ(parse_isa_limit(isa_name(isa)), isa);
    } else {
      EXPECT_THROW(parse_isa_limit(isa_name(isa)), Error) << isa_name(isa);
    }
  }
  EXPECT_EQ(machine_refusal(Isa::kRef), "");
  EXPECT_EQ(machine_refusal(Isa::kAvx2).empty(), cpu_features().avx2);
}

TEST(Dispatch, TakesTheFirstThatIsNotRefused) {
  const DispatchTable<FakeKernels> table("fake",
                                         {{"broken", Isa::kRef, {1}, [] { return std::string("no luck"); }},
                                          {"good", Isa::kRef, {2}},
                                          {"ref", Isa::kRef, {3}}});
  EXPECT_EQ(table.chosen().id, 2);
  EXPECT_EQ(table.usable().size(), 2u);
  const KernelReport report = table.report();
  EXPECT_EQ(report.kernel, "fake");
  EXPECT_EQ(report.chosen, 1u);
  EXPECT_EQ(report.implementations[0].refusal, "no luck");
  EXPECT_EQ(report.implementations[1].refusal, "");
}

TEST(Dispatch, LimitDecidesBetweenUsableOnes) {
  const DispatchTable<FakeKernels> table(
      "fake", {{"fast", Isa::kAmxBf16, {1}}, {"vector", Isa::kBaseline, {2}}, {"ref", Isa::kRef, {3}}});
  const Isa limit = isa_limit();
  const int expected = limit == Isa::kRef                                                 ? 3
                       : limit == Isa::kAmxBf16 && machine_refusal(Isa::kAmxBf16).empty() ? 1
                                                                                          : 2;
  EXPECT_EQ(table.chosen().id, expected);
}

TEST(Dispatch, WithoutUsableImplementationIsABug) {
  EXPECT_THROW(DispatchTable<FakeKernels>("fake", {{"x", Isa::kRef, {1}, [] { return std::string("no"); }}}),
               Error);
}

TEST(Dispatch, EveryKernelHasAReport) {
  for (const KernelReport& report : kernel_reports()) {
    ASSERT_LT(report.chosen, report.implementations.size()) << report.kernel;
    EXPECT_EQ(report.implementations[report.chosen].refusal, "") << report.kernel;
    EXPECT_EQ(report.implementations.back().name, "ref") << report.kernel;
  }
}

}  // namespace
}  // namespace tessera
