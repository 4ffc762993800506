#include "settings/state/quantization_settings.h"

#include <tuple>

#include "base/error.h"
#include "base/flags.h"

namespace tessera {
namespace {

int64_t bits_of(const RunSpec& args) {
  if (args.base.bits) return *args.base.bits;
  return args.base.load_in_8bit ? 8 : args.base.load_in_4bit ? 4 : 0;
}

}  // namespace

void declare_quantization_flags(FlagTable* table, RunSpec* args) {
  table
      ->add("quantization_bit", &args->base.bits,
            "With LoRA, keeps the matrices of the layers in 8 bits (int8, a scale per row; the other operand "
            "of a product is quantised on the fly) or 4 (nf4, a scale per 64 weights). The model on disk "
            "stays as it is.")
      .value_name = "8|4";
  table->add("load_in_8bit", &args->base.load_in_8bit, "The same as quantization_bit 8.");
  table->add("load_in_4bit", &args->base.load_in_4bit, "The same as quantization_bit 4.");
  table
      ->add_choice("bnb_4bit_quant_type", &args->base.quant_type, {"nf4"},
                   "The 16 values of a weight in 4 bits.")
      .aliases = {"quantization_type"};
  table
      ->add("bnb_4bit_use_double_quant", &args->base.double_quant,
            "Keeps the scales of weights in 4 bits as 8-bit codes. Defaults to true with quantization_bit, "
            "as in LLaMA-Factory, and to false with load_in_4bit, as in Hugging Face.")
      .aliases = {"double_quantization", "use_bnb_nested_quant"};
}

void check_quantization_arguments(const FlagTable& table, const RunSpec& args) {
  const int64_t bits = bits_of(args);
  if (args.base.bits && bits != 4 && bits != 8) {
    fail(ExitCode::kBadConfig, "quantization_bit: expected 8 or 4, found {}", bits);
  }
  for (const auto& [flag, is_set, of_flag] : {std::tuple{"load_in_4bit", args.base.load_in_4bit, 4},
                                              std::tuple{"load_in_8bit", args.base.load_in_8bit, 8}}) {
    if (!is_set || of_flag == bits) continue;
    fail(ExitCode::kBadConfig, "{} contradicts {}: leave one of them out", flag,
         args.base.bits ? fmt::format("quantization_bit {}", bits) : "load_in_8bit");
  }
  if (bits == 0) return;
  if (args.lora.finetuning_type != FinetuningType::kLora) {
    fail(ExitCode::kBadConfig,
         "{}: needs finetuning_type lora, found {}: weights that are trained are bfloat16 or float32 (see "
         "dtype)",
         args.base.bits ? "quantization_bit"
         : bits == 8    ? "load_in_8bit"
                        : "load_in_4bit",
         args.lora.finetuning_type);
  }
  for (const char* flag : {"bnb_4bit_quant_type", "bnb_4bit_use_double_quant"}) {
    if (table.is_set(flag) && bits == 8) {
      fail(ExitCode::kBadConfig, "{}: needs weights in 4 bits, found 8", flag);
    }
  }
}

Quantization base_quantization_of(const RunSpec& args) {
  switch (bits_of(args)) {
    case 8:
      return Quantization::kInt8;
    case 4:
      return args.base.double_quant.value_or(args.base.bits.has_value()) ? Quantization::kNf4Double
                                                                         : Quantization::kNf4;
    default:
      return Quantization::kNone;
  }
}

}  // namespace tessera
