#include "settings/state/optimizer_settings.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "settings/flag_limits.h"

namespace tessera {
namespace {

std::string without_case_and_underscores(std::string_view name) {
  std::string out = lower_case(std::string(name));
  std::erase(out, '_');
  return out;
}

}  // namespace

void declare_optim_flag(FlagTable* table, RunSpec* args) {
  Flag& flag = table->add_choice(
      "optim", &args->optimizer.form,
      "Optimizer. adamw_torch, adamw_torch_fused, adamw_hf, adamw and adamw_32bit are AdamW as in "
      "torch.optim "
      "with float32 moments. adamw_bf16 keeps them in BF16, rounded stochastically: 4 bytes per parameter "
      "less. adamw_8bit, adamw_bnb_8bit and adamw_torch_8bit keep them in 8 bits, as blocks of codes of this "
      "program: 6 bytes less. lion_32bit, or lion, is Lion, with one moment, and lion_8bit with one in 8 "
      "bits; its learning rate is three to ten times lower than AdamW's. The betas are adam_beta1 and "
      "adam_beta2. muon orthogonalises the momentum of the layers' matrices, all else is AdamW's. adafactor "
      "keeps no moment but the means of squares of a matrix's rows and columns, as Hugging Face's with a "
      "given learning rate. A name with paged_ means the same as without: nothing is paged, but "
      "offload_optimizer_device nvme keeps the state on a disk. Case and underscores do not matter: "
      "PagedAdamW8bit is paged_adamw_8bit.");
  flag.set = [set = flag.set](const std::vector<std::string>& values) {
    if (values.size() != 1) return set(values);
    for (const auto& word : choice_words(OptimizerForm())) {
      if (without_case_and_underscores(word.text) != without_case_and_underscores(values[0])) continue;
      return set({std::string(word.text)});
    }
    fail(ExitCode::kUsage,
         "--optim {} is not supported: use adamw_torch, adamw_bf16 (half the memory for moments), adamw_8bit "
         "(a quarter), lion_32bit, lion_8bit, muon or adafactor",
         printable(values[0]));
  };
}

void declare_muon_flags(FlagTable* table, RunSpec* args) {
  limit(table->add("muon_momentum", &args->optimizer.muon_momentum, "Muon's Nesterov momentum."),
        {0, 1, false, true});
  table->add_choice(
      "muon_adjust_lr_fn", &args->optimizer.muon_rate,
      "How Muon's rate for a matrix [rows, columns] follows from learning_rate: match_rms_adamw multiplies "
      "it by 0.2 sqrt(max(rows, columns)), so that a learning rate of AdamW suits all parameters; original "
      "by sqrt(max(1, rows / columns)).");
}

void check_optimizer(const FlagTable& table, const RunSpec& args) {
  if (args.optimizer.form != OptimizerForm::kMuon) {
    for (const char* name : {"muon_momentum", "muon_adjust_lr_fn"}) {
      if (table.is_set(name)) log_warning("{} has no effect: optim is {}", name, args.optimizer.form);
    }
  }
  if (is_elementwise(state_tensors_of(args.optimizer))) return;
  if (args.saving.peer_snapshot_steps > 0) {
    fail(ExitCode::kBadConfig,
         "peer_snapshot_steps {} contradicts optim {}: copies in memory hold one value per element; use "
         "save_steps",
         args.saving.peer_snapshot_steps, args.optimizer.form);
  }
}

}  // namespace tessera
