#include "base/text.h"
#include "bench/commands/bench_command.h"
#include "bench/kernels/gemm_bench.h"
#include "cli/threads.h"
#include "devices/make_ops.h"
#include "settings/choices.h"

namespace tessera {
namespace {

class BenchGemmCommand : public BenchCommand {
 public:
  std::string name() const override { return "bench gemm"; }
  std::string summary() const override { return "Measure the matrix products of linear layers"; }
  std::string description() const override {
    return "The products of a linear layer and its backward pass, y = x W^T, dx = dy W and dW = or += dy^T "
           "x, in the shapes of Llama 3 8B. Each line is verified against float64 on a sample of elements, "
           "then measured in turn with the arithmetic peak and with oneDNN where it runs: share is the "
           "median of the "
           "paired ratios to the peak, followed by its quartiles; the last column is the median ratio to "
           "oneDNN. Weights are cold: every call uses the next of many copies. They are packed beforehand if "
           "the implementation uses packed weights, as training packs them once per step. With weights, "
           "products "
           "of quantised ones (the base of LoRA) are compared with those of the operands' type.";
  }
  std::vector<std::string> examples() const override {
    return {"tessera-bench gemm --preset 15m 160m --rows 2048", "tessera-bench gemm --shapes 512x4096x14336",
            "tessera-bench gemm --weights int8 --rows 1024",
            "tessera-bench gemm --json --compare none >gemm.jsonl"};
  }

  void declare_flags(FlagTable* table) override {
    Flag& presets = table->add("preset", &presets_, "Presets that give the weight shapes.");
    presets.value_name = preset_value_name();
    Flag& rows = table->add("rows", &rows_, "Numbers of tokens T for the presets.");
    rows.value_name = "T...";
    Flag& shapes = table->add("shapes", &shapes_, "Shapes T x N x K instead, as in 512x4096x14336.");
    shapes.value_name = "TxNxK...";
    Flag& products = table->add("products", &products_,
                                "Products to measure: forward, backward_input, backward_weight (overwrites), "
                                "backward_weight_add (accumulates).");
    products.value_name = "NAME...";
    table->add(
        "pack_weights", &pack_weights_,
        "Pack the weights beforehand. Otherwise they are packed in every call, as when memory is short.");
    table->add_choice("dtype", &dtype_, kTrainingDTypeWords, "Type of the operands.");
    declare_weights_flag(table, "Form of the weights: that of the operands, or one of quantization_bit.");
    table
        ->add("compare", &compare_,
              "Implementation to compare with, or none; auto is onednn if this machine runs it.")
        .value_name = "NAME";
    declare_device_flag(table);
    declare_common_flags(table, /*seconds=*/0.5);
  }

  void run(FlagTable* flags) override {
    if (weights_form() != Quantization::kNone && !flags->is_set("products"))
      products_ = {"forward", "backward_input"};
    const std::vector<GemmCase> cases = all_cases();
    if (is_on_device()) return run_on_device(cases);
    const auto& table = gemm_table();
    const GemmImplementation& ours = table.chosen_implementation();
    const std::vector<GemmImplementation> others = implementations_to_compare(table, compare_);
    ThreadPool pool(threads_for_products(num_threads()));
    if (weights_form() != Quantization::kNone) return run_quantized(cases, ours, pool);
    show_header(fmt::format("gemm {}, {}, {}; shape T x N x K", gemm_implementation_text(ours, dtype_),
                            dtype_name(dtype_), count_of(pool.num_threads(), "thread")) +
                    (others.empty() ? "" : "\nagainst " + implementation_text(others[0])),
                "TFLOPS", others.empty() ? "" : std::string(others[0].name));
    for (const GemmCase& c : cases) show(run_gemm_case(c, ours, others, measure_options(), pool), pool);
  }

 private:
  void run_on_device(const std::vector<GemmCase>& cases) const {
    if (weights_form() != Quantization::kNone)
      fail(ExitCode::kUsage, "--weights: quantised weights are not available with --device {}", device());
    check_nothing_to_compare(compare_);
    ThreadPool pool(threads_for_pool(num_threads()));
    const std::unique_ptr<Ops> ops = make_ops(device(), pool);
    DevicePeakMeter peak(*ops, dtype_);
    show_header(fmt::format("gemm {}, {}; shape T x N x K", ops->description(), dtype_name(dtype_)), "TFLOPS",
                "");
    for (const GemmCase& c : cases)
      show(run_device_gemm_case(c, {*ops, peak, pool}, measure_options()), pool);
  }

  void run_quantized(const std::vector<GemmCase>& cases, const GemmImplementation& other, ThreadPool& pool) {
    const Quantization form = weights_form();
    show_header(fmt::format("gemm, weights in {}, {}, {}; shape T x N x K\nagainst {}",
                            quantization_name(form), dtype_name(dtype_),
                            count_of(pool.num_threads(), "thread"), gemm_implementation_text(other, dtype_)),
                "TFLOPS", std::string(other.name));
    for (const GemmCase& c : cases) show(run_quantized_case(c, form, other, measure_options(), pool), pool);
  }

  std::vector<GemmCase> all_cases() const {
    std::vector<GemmCase> shapes;
    for (const std::string& text : shapes_) shapes.push_back(parse_gemm_shape(text));
    const std::vector<int64_t> rows = parse_sizes("rows", rows_);
    if (shapes_.empty()) {
      for (const std::string& preset : presets_) {
        for (const WeightShape& weight : weight_shapes(preset_config(preset))) {
          for (const int64_t T : rows) {
            GemmCase c;
            c.T = T;
            c.N = weight.N;
            c.K = weight.K;
            shapes.push_back(c);
          }
        }
      }
    }
    std::vector<GemmCase> cases;
    for (GemmCase c : shapes) {
      c.dtype = dtype_;
      c.pack_weights = pack_weights_;
      for (const std::string& product : products_) {
        c.product = parse_product(product);
        cases.push_back(c);
      }
    }
    return cases;
  }

  std::vector<std::string> presets_ = {"llama3-8b"};
  std::vector<std::string> rows_ = {"512", "2048"};
  std::vector<std::string> shapes_;
  std::vector<std::string> products_ = {"forward", "backward_input", "backward_weight",
                                        "backward_weight_add"};
  bool pack_weights_ = true;
  DType dtype_ = DType::kBF16;
  std::string compare_ = "auto";
};

}  // namespace

std::unique_ptr<Command> make_bench_gemm_command() { return std::make_unique<BenchGemmCommand>(); }

}  // namespace tessera
