// Every placement that exists, on ranks and nodes, with every optimizer: the bits of the store that has
// everything in the memory of one rank. Gradients are small integers, which no order of summation rounds.
#include "shard/parameter_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <random>

#include "base/rng.h"
#include "shard/layout/model_places.h"
#include "support/draws.h"
#include "support/isolated_device.h"
#include "support/model_test_support.h"
#include "support/ranks/rank_test_support.h"
#include "test_folder.h"

namespace tessera {

static std::string name_of(const Placement& of) {
  constexpr const char* kWeights[] = {"InNode", "LayerFile", "OnDevice", "HostUpdated"};
  constexpr const char* kUpdates[] = {"AfterStep", "InBackward", "BesideNextStep"};
  return fmt::format("{}{}{}{}{}", kWeights[static_cast<size_t>(of.weights)],
                     kUpdates[static_cast<size_t>(of.update)],
                     of.state == StateChoice::kFile ? "StateInFile" : "", of.device_window ? "Window" : "",
                     of.is_single ? "" : "Ranks");
}
static void PrintTo(const Placement& of, std::ostream* out) { *out << name_of(of); }

namespace {

using testing::Each;
using testing::IsEmpty;

constexpr int64_t kStoreSteps = 3;

// A model whose gradients depend on the step, the pass and the ranks alone.
class IntegerModel final : public TrainableModel {
 public:
  // Rows of each layer's matrix by layer; several pieces of what is read, packed or summed at a time.
  struct Sizes {
    ModelConfig config;
    std::vector<int64_t> layer_rows;
  };

  IntegerModel(const Sizes& sizes, DType dtype, Ops& ops, int first_rank, int end_rank)
      : TrainableModel(sizes.config, dtype, ops), first_rank_(first_rank), end_rank_(end_rank) {
    const int64_t V = sizes.config.vocab_size, D = sizes.config.hidden_size;
    const auto num_layers = static_cast<int64_t>(sizes.layer_rows.size());
    slots_.resize(static_cast<size_t>(2 * num_layers) + 2);
    std::vector<ModelTensor> tensors;
    const auto add = [&](int64_t group, ParameterKind kind, std::string name, std::vector<int64_t> shape) {
      Slot& slot = slots_[tensors.size()];
      slot.group = group;
      slot.is_matrix = kind == ParameterKind::kMatrix;
      tensors.push_back({group, kind, {{std::move(name), std::move(shape)}}, &slot.weight, &slot.gradient});
    };
    add(0, ParameterKind::kEmbedding, "embedding", {V, D});
    for (int64_t i = 0; i < num_layers; ++i) {
      add(i + 1, ParameterKind::kNorm, fmt::format("norm.{}", i), {D});
      add(i + 1, ParameterKind::kMatrix, fmt::format("matrix.{}", i),
          {sizes.layer_rows[static_cast<size_t>(i)], D});
    }
    if (sizes.config.tie_word_embeddings) {
      add(num_layers + 1, ParameterKind::kNorm, "norm", {D});
    } else {
      add(num_layers + 1, ParameterKind::kLmHead, "head", {V, D});
    }
    list_tensors(tensors);
    for (size_t i = 0; i < tensors.size(); ++i)
      slots_[i].offset = layout().at(tensors[i].parts[0].name).offset;
  }

  void begin_pass(int64_t step, int64_t pass) {
    step_ = step;
    pass_ = pass;
    opened_.clear();
  }
  // The weights of the last pass in the order in which forward and the head opened them.
  const std::vector<float>& opened() const { return opened_; }
  ModelFlops flops(std::span<const int32_t>, int64_t, int64_t) const override { return {}; }

 private:
  struct Slot {
    int64_t group;
    bool is_matrix;
    int64_t offset;
    ConstTensorView weight;
    TensorView gradient;
  };

  ActivationBytes arena_bytes(const ActivationLimits&) const override { return {}; }
  void lay_out(const PackedBatch&, Arena&, Arena&) override {}
  OpsLimits ops_limits(const ActivationLimits& limits) const override { return ops_limits_of_layers(limits); }
  EmbeddingBuffers embedding_buffers() override { return {}; }
  void compute_embedding(const PackedBatch&) override { look_at(0); }
  void compute_layer(int64_t layer) override { look_at(layer + 1); }
  LossSums compute_loss(const PackedBatch& batch, float, std::span<LossSums>) override {
    return {0, batch.num_targets};
  }
  LossSums compute_head(const PackedBatch& batch, float, float, WeightUpdate update) override {
    look_at(head());
    fill(head(), update);
    if (config().tie_word_embeddings) fill(0, update);
    return {0, batch.num_targets};
  }
  void recompute_layer(int64_t) override {}
  void compute_layer_backward(int64_t layer, WeightUpdate update) override { fill(layer + 1, update); }
  void compute_embedding_backward(const PackedBatch&, Update update) override {
    if (!config().tie_word_embeddings) fill(0, update);
  }

  int64_t head() const { return std::ssize(layout().groups()) - 1; }
  void look_at(int64_t group) {
    for (const Slot& slot : slots_) {
      if (slot.group != group) continue;
      const int64_t count = slot.weight.num_elements();
      std::vector<std::byte> bytes(static_cast<size_t>(slot.weight.size_bytes()));
      copy(slot.weight.reshaped({count}), TensorView(bytes.data(), dtype(), {count}));
      for (int64_t i = 0; i < count; ++i) {
        opened_.push_back(dtype() == DType::kF32 ? reinterpret_cast<const float*>(bytes.data())[i]
                                                 : to_float(reinterpret_cast<const bf16*>(bytes.data())[i]));
      }
    }
  }
  // From -2 to 2 for every rank.
  float gradient(int64_t element) const {
    int sum = 0;
    for (int rank = first_rank_; rank < end_rank_; ++rank) {
      const auto words = philox4x32(static_cast<uint64_t>(step_ * 64 + pass_), static_cast<uint64_t>(element),
                                    static_cast<uint64_t>(rank));
      sum += static_cast<int>(words[0] % 5) - 2;
    }
    return static_cast<float>(sum);
  }
  void fill(int64_t group, WeightUpdate update) {
    for (const Slot& slot : slots_) {
      if (slot.group != group) continue;
      const int64_t count = slot.gradient.num_elements();
      const TensorView flat = slot.gradient.reshaped({count});
      std::vector<float> values(static_cast<size_t>(count));
      const TensorView here(values.data(), DType::kF32, {count});
      if (update.mode == Update::kAdd) copy(flat, here);
      for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] += gradient(slot.offset + i);
      copy(here, flat);
      if (update.squares == nullptr || !(slot.is_matrix || group == head())) continue;
      if (group == head() && config().tie_word_embeddings) continue;
      for (const float value : values) *update.squares += static_cast<double>(value) * value;
    }
  }

  int first_rank_, end_rank_;
  int64_t step_ = 0, pass_ = 0;
  std::vector<Slot> slots_;
  std::vector<float> opened_;
};

struct StoreCase {
  Placement placement;
  int num_nodes = 1;
  int local_world_size = 1;
  OptimizerForm optimizer = OptimizerForm::kAdamW;
  DType dtype = DType::kBF16;
  int64_t num_passes = 1;
  IntegerModel::Sizes sizes = {};
  ZeroSettings settings = {};  // stage, schedule, types and sizes
  int64_t ring_elements = kRingElements;

  int world_size() const { return num_nodes * local_world_size; }
  std::string describe() const {
    return fmt::format("{} nodes of {} ranks, {} {}, {} passes, stage {} {}, {} layers{}", num_nodes,
                       local_world_size, optimizer, dtype_name(dtype), num_passes, settings.stage,
                       settings.schedule == GatherSchedule::kPerLayer ? "per_layer" : "per_step",
                       sizes.layer_rows.size(), sizes.config.tie_word_embeddings ? ", tied" : "");
  }
};

// The final state of all ranks of a run.
struct StoreResult {
  std::vector<std::vector<float>> state;   // masters, then the tensors with a value per element
  std::vector<std::vector<float>> opened;  // by step, on the first rank
  std::vector<double> squares;             // by step
};

ZeroSettings settings_of(const StoreCase& of, const std::filesystem::path& folder) {
  ZeroSettings settings = of.settings;
  settings.passes_per_step = of.num_passes;
  settings.weight_dtype = of.dtype;
  settings.optimizer_in_backward = of.placement.update == UpdateChoice::kInBackward;
  settings.optimizer_on_host = of.placement.weights == WeightChoice::kHostUpdated;
  settings.parameters_on_host = of.placement.device_window;
  if (of.placement.state == StateChoice::kFile) settings.state_folder = StateFileSettings{folder};
  if (of.placement.weights == WeightChoice::kLayerFile) settings.weight_folder = StateFileSettings{folder};
  return settings;
}

bool is_on_isolated_device(const Placement& placement) {
  return placement.gradients == GradientChoice::kOnDevice || placement.device_window;
}

// One rank of a run, which is stopped after two steps and resumed by another store.
class StoreRank {
 public:
  StoreRank(const StoreCase& of, Communicator& comm, int first_rank, int end_rank, StoreResult* result,
            std::mutex* mutex)
      : case_(of), comm_(comm), result_(result), mutex_(mutex), pool_(of.world_size() == 1 ? 2 : 1) {
    if (is_on_isolated_device(of.placement)) isolated_.emplace(*ops_, device_);
    Ops& ops = isolated_ ? static_cast<Ops&>(*isolated_) : *ops_;
    model_.emplace(of.sizes, of.dtype, ops, first_rank, end_rank);
  }

  void run() {
    for (const int64_t end : {int64_t{2}, kStoreSteps}) {
      const TestFolder folder;
      ParameterStore store(*model_, settings_of(case_, folder.path()),
                           make_optimizer({.form = case_.optimizer, .weight_decay = 0.1}),
                           /*decay_all=*/false, comm_, pool_, case_.ring_elements);
      model_->reserve(limits_of(batch_));
      give(store);
      for (; step_ < end; ++step_) step(store);
      store.state().settle({});
      comm_.barrier({"steps"});
      take(store);
      comm_.barrier({"state"});
    }
  }

 private:
  void step(ParameterStore& store) {
    const OptimizerStep step = {.step = step_ + 1, .learning_rate = 1e-2, .gradient_scale = 0.25};
    if (store.backward_update() != nullptr) store.backward_update()->begin(step, 0, {});
    for (int64_t pass = 0; pass < case_.num_passes; ++pass) {
      const bool is_last = pass + 1 == case_.num_passes;
      model_->begin_pass(step_, pass);
      model_->forward_backward(batch_, 1, 0,
                               store.begin_pass(pass == 0, is_last ? PassKind::kLastPass : PassKind::kPass));
      store.end_pass();
    }
    const double squares = comm_.sum(store.gradient_squares(), {"squares"});
    if (store.not_finite_gradient() != "") fail(ExitCode::kInternal, "integers that are not finite");
    if (comm_.world().rank == 0) {
      result_->opened.push_back(model_->opened());
      result_->squares.push_back(squares);
    }
    if (store.backward_update() == nullptr) store.update(step, {});
  }

  // The masters and the tensors that have a value for every element.
  std::vector<StateKind> kinds(const ParameterStore& store) const {
    std::vector<StateKind> kinds = {StateKind::kMaster};
    for (size_t i = 0; i < store.state().tensors().size() && is_elementwise(store.state().tensors()); ++i)
      kinds.push_back(state_kind(i));
    return kinds;
  }
  void give(ParameterStore& store) {
    const std::vector<StateKind> all = kinds(store);
    for (size_t k = 0; k < std::min(all.size(), result_->state.size()); ++k) {
      for (const ElementRange& range : store.state().kept()) {
        store.state().write(
            all[k], range.begin,
            std::span(result_->state[k])
                .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin)));
      }
    }
    store.state().written();
    comm_.barrier({"given"});
  }
  void take(const ParameterStore& store) {
    const std::vector<StateKind> all = kinds(store);
    const std::lock_guard lock(*mutex_);
    result_->state.resize(all.size(),
                          std::vector<float>(static_cast<size_t>(model_->layout().num_elements())));
    for (size_t k = 0; k < all.size(); ++k) {
      for (const ElementRange& range : store.state().owned()) {
        store.state().read(
            all[k], range.begin,
            std::span(result_->state[k])
                .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin)));
      }
    }
  }

  const StoreCase& case_;
  Communicator& comm_;
  StoreResult* result_;
  std::mutex* mutex_;
  ThreadPool pool_;
  std::unique_ptr<Ops> ops_ = make_cpu_ops(pool_);
  IsolatedDevice device_;
  std::optional<IsolatedOps> isolated_;
  std::optional<IntegerModel> model_;
  PackedBatch batch_ = pack(random_rows({3, 2}, 11, 1));
  int64_t step_ = 0;
};

StoreResult start_of(const StoreCase& of) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  const IntegerModel model(of.sizes, of.dtype, *ops, 0, 0);
  return {.state = {random_weights(model.layout(), 0.3f, 7)}, .opened = {}, .squares = {}};
}

StoreResult run_whole(const StoreCase& of) {
  StoreCase whole = of;
  whole.placement = {};
  whole.settings = {};
  StoreResult result = start_of(of);
  std::mutex mutex;
  StoreRank(whole, single_process(), 0, of.world_size(), &result, &mutex).run();
  return result;
}

StoreResult run_placed(const StoreCase& of) {
  StoreResult result = start_of(of);
  std::mutex mutex;
  if (of.world_size() == 1) {
    StoreRank(of, single_process(), 0, 1, &result, &mutex).run();
    return result;
  }
  CommOptions options;
  options.timeout = std::chrono::seconds(60);
  const std::vector<std::string> errors =
      run_communicators(of.num_nodes, of.local_world_size, options, [&](Communicator& comm) {
        const int rank = comm.world().rank;
        StoreRank(of, comm, rank, rank + 1, &result, &mutex).run();
      });
  EXPECT_THAT(errors, Each(IsEmpty())) << of.describe();
  return result;
}

int64_t drawn(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

StoreCase random_case(const Placement& placement, int num_nodes, int local_world_size,
                      OptimizerForm optimizer, uint64_t seed) {
  std::mt19937_64 random(seed);
  StoreCase of{.placement = placement, .num_nodes = num_nodes, .local_world_size = local_world_size};
  of.optimizer = optimizer;
  // Devices halve the moments of BF16 weights alone.
  const bool may_be_f32 = optimizer != OptimizerForm::kAdamWHalf;
  of.dtype = may_be_f32 && random() % 3 == 0 ? DType::kF32 : DType::kBF16;
  of.num_passes = placement.update == UpdateChoice::kInBackward ? 1 : drawn(random, 1, 3);
  of.sizes.config.vocab_size = drawn(random, 11, 60);
  // From 10 on, so that the final norm is less than half of tied embeddings (takes_layer_place()).
  of.sizes.config.hidden_size = drawn(random, 10, 40);
  of.sizes.config.tie_word_embeddings = random() % 3 == 0;
  const int64_t num_layers = drawn(random, 1, 6);
  for (int64_t i = 0; i < num_layers; ++i) of.sizes.layer_rows.push_back(drawn(random, 1, 90));
  ZeroSettings& settings = of.settings;
  settings.stage = static_cast<int>(drawn(random, placement.update == UpdateChoice::kInBackward ? 2 : 0, 3));
  settings.schedule = random() % 2 == 0 ? GatherSchedule::kPerLayer : GatherSchedule::kPerStep;
  settings.gradient_dtype = random() % 3 == 0 && of.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  settings.network_dtype = random() % 2 == 0 ? DType::kBF16 : DType::kF32;
  settings.overlap = random() % 4 != 0;
  settings.persistence_threshold = random() % 2 == 0 ? 0 : drawn(random, 1, 2000);
  settings.prefetch_elements = drawn(random, 0, 4000);
  of.ring_elements = random() % 2 == 0 ? 256 : kRingElements;
  return of;
}

// The placements whose bits equal those of one rank: nodes that train apart do not have them.
std::vector<Placement> placements_that_exist() {
  std::vector<Placement> all;
  for (int weights = 0; weights < 4; ++weights) {
    for (int gradients = 0; gradients < 3; ++gradients) {
      for (int state = 0; state < 3; ++state) {
        for (int update = 0; update < 3; ++update) {
          for (const bool window : {false, true}) {
            for (const bool is_single : {true, false}) {
              const Placement placement = {.weights = static_cast<WeightChoice>(weights),
                                           .gradients = static_cast<GradientChoice>(gradients),
                                           .state = static_cast<StateChoice>(state),
                                           .update = static_cast<UpdateChoice>(update),
                                           .device_window = window,
                                           .is_single = is_single};
              if (why_not(placement) == nullptr) all.push_back(placement);
            }
          }
        }
      }
    }
  }
  return all;
}

std::vector<OptimizerForm> optimizers_for(const Placement& placement) {
  using enum OptimizerForm;
  if (placement.weights == WeightChoice::kOnDevice) return {kAdamW, kAdamWHalf};
  return {kAdamW, kAdamWHalf, kAdamW8Bit, kLion, kLion8Bit, kMuon, kAdafactor};
}

class Placements : public testing::TestWithParam<Placement> {};

TEST_P(Placements, HaveTheBitsOfTheWholeStore) {
  const Placement& placement = GetParam();
  const std::vector<std::pair<int, int>> jobs =
      placement.is_single
          ? std::vector<std::pair<int, int>>{{1, 1}}
          : std::vector<std::pair<int, int>>{{1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {3, 1}, {4, 1}};
  // Under a sanitizer only some of these cases, each of them for some placement.
  const uint64_t num_cases = jobs.size() * optimizers_for(placement).size();
  const uint64_t stride = num_cases / draws(num_cases, 5), first = name_of(placement).size() % stride;
  uint64_t seed = 1;
  for (const auto& [num_nodes, local_world_size] : jobs) {
    for (const OptimizerForm optimizer : optimizers_for(placement)) {
      if (seed++ % stride != first) continue;
      const StoreCase of = random_case(placement, num_nodes, local_world_size, optimizer, seed);
      SCOPED_TRACE(of.describe());
      const StoreResult expected = run_whole(of), found = run_placed(of);
      ASSERT_EQ(found.state, expected.state);
      ASSERT_EQ(found.opened, expected.opened);
      ASSERT_THAT(found.squares, testing::Pointwise(testing::DoubleNear(1e-9), expected.squares));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ThatExist, Placements, testing::ValuesIn(placements_that_exist()),
                         [](const auto& test) { return name_of(test.param); });

TEST(Placement, SettingsLeadToPlacementsThatExist) {
  const std::vector<Placement> all = placements_that_exist();
  EXPECT_EQ(all.size(), 22u);
  for (const Placement& placement : all) {
    const StoreCase of{.placement = placement};
    const Placement again = placement_of(settings_of(of, "folder"), placement.is_single ? 1 : 2,
                                         is_on_isolated_device(placement));
    EXPECT_EQ(name_of(again), name_of(placement));
  }
}

}  // namespace
}  // namespace tessera
