#include "support/train/train_test_support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <numeric>
#include <thread>

#include "comm/store/store_server.h"
#include "formats/safetensors/safetensors.h"
#include "weights/model_folder.h"

namespace tessera {

void write_test_model(const std::filesystem::path& folder, const ModelConfig& config, float scale,
                      uint64_t seed, DType save_dtype) {
  const ParameterLayout layout = parameter_layout(config);
  const std::vector<float> weights = random_weights(layout, scale, seed);
  const WeightSource source = [&](int64_t begin, std::span<float> values) {
    std::copy_n(weights.begin() + begin, values.size(), values.begin());
  };
  ExportOptions options;
  options.save_dtype = save_dtype;
  export_model_folder(folder, config, layout, source, options);
}

void write_token_rows(const std::filesystem::path& file, const std::vector<TokenRow>& rows) {
  std::vector<int64_t> ids, labels;
  for (const TokenRow& row : rows) {
    ids.insert(ids.end(), row.ids.begin(), row.ids.end());
    labels.insert(labels.end(), row.labels.begin(), row.labels.end());
  }
  const int64_t length = std::ssize(rows.front().ids);
  TESSERA_CHECK(std::ssize(ids) == length * std::ssize(rows) && labels.size() == ids.size(),
                "rows of one length");
  const std::vector<int64_t> shape = {std::ssize(rows), length};
  const auto view = [&](std::vector<int64_t>& values) {
    return ConstTensorView(values.data(), DType::kI64, Shape(shape));
  };
  write_safetensors(file, {make_item("input_ids", shape, view(ids), DType::kI64),
                           make_item("labels", shape, view(labels), DType::kI64)});
}

std::map<std::string, std::vector<float>> read_tensors(const std::filesystem::path& path) {
  const std::filesystem::path adapter = path / kAdapterFileName;
  const SafetensorsModel model = SafetensorsModel::open(std::filesystem::exists(adapter) ? adapter : path);
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& [name, location] : model.tensors()) {
    const std::vector<int64_t>& shape = location.entry->shape;
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    std::vector<float> values(static_cast<size_t>(count));
    location.file->read(*location.entry, 0, TensorView(values.data(), DType::kF32, {count}));
    tensors[name] = std::move(values);
  }
  return tensors;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  TESSERA_CHECK(found.size() == expected.size(), "{} and {} values", found.size(), expected.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

nlohmann::json read_json(const std::filesystem::path& file) {
  return nlohmann::json::parse(read_text_file(file));
}

std::vector<double> losses_of_steps(const RecordingObserver& run) {
  std::vector<double> losses;
  for (const StepMetrics& step : run.steps) losses.push_back(step.loss);
  return losses;
}

TinyRun::TinyRun(const ModelConfig& config) {
  write_test_model(folder_ / "model", config);
  write_token_rows(folder_ / "train.safetensors",
                   random_rows(std::vector<int64_t>(14, 9), config.vocab_size, 3));
  write_token_rows(folder_ / "eval.safetensors",
                   random_rows(std::vector<int64_t>(5, 7), config.vocab_size, 4));
  spec.model.folder = folder_ / "model";
  spec.data.dataset = {folder_ / "train.safetensors"};
  spec.data.cache_dir = folder_ / "cache";
  spec.output_dir = folder_ / "out";
  spec.precision.dtype = DType::kF32;
  spec.data.shuffle = false;
  spec.batch.rows_per_device = 2;
  spec.batch.accumulation_steps = 2;
  spec.batch.max_steps = 6;
  spec.schedule.learning_rate = 1e-2;
  spec.schedule.form = ConstantSchedule();
  spec.reporting.logging_steps = 2;
  spec.saving.strategy = SaveStrategy::kNo;
  spec.reporting.measure_peak = false;
}

void TinyRun::train_and_die_after(int64_t step) const {
  EXPECT_THROW(train(2, {},
                     [step](const StepMetrics& metrics) {
                       if (metrics.step == step) throw Error(ExitCode::kInternal, "power cut");
                     }),
               Error);
}

RecordingObserver TinyRun::train(int64_t num_threads, const std::function<int()>& stop_signal,
                                 const std::function<void(const StepMetrics&)>& after_step) const {
  ThreadPool pool(num_threads);
  RecordingObserver observer;
  observer.after_step = after_step;
  Trainer trainer(spec, pool, observer);
  trainer.run(stop_signal);
  return observer;
}

std::vector<RanksCase> cases_of_several_nodes() {
  std::vector<RanksCase> cases;
  for (const Ranks ranks : {Ranks{2, 1}, Ranks{3, 1}, Ranks{2, 2}}) {
    for (int64_t stage = 0; stage <= 3; ++stage) cases.push_back({ranks, stage, "per_step"});
    cases.push_back({ranks, 3, "per_layer"});
  }
  return cases;
}

void run_ranks(const Ranks& ranks, const std::function<void(Communicator& comm)>& body, int restart_count,
               const std::function<std::vector<int>(const World& world)>& slots_of) {
  const int world_size = ranks.world_size();
  StoreServerOptions server_options;
  server_options.bind_addresses = {"127.0.0.1"};
  server_options.run_id = "test";
  server_options.world_size = world_size;
  server_options.restart_count = restart_count;
  const auto server = StoreServer::start(server_options);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        World world;
        world.rank = rank;
        world.world_size = world_size;
        world.local_world_size = ranks.local_world_size;
        world.local_rank = rank % ranks.local_world_size;
        world.node_rank = rank / ranks.local_world_size;
        world.num_nodes = ranks.num_nodes;
        world.master_port = server->port();
        world.agent_has_store = true;
        world.run_id = "test";
        world.host = fmt::format("host{}", world.node_rank);
        world.restart_count = restart_count;
        if (slots_of) world.snapshot_slots = slots_of(world);
        const std::unique_ptr<Communicator> comm = Communicator::open(world, {});
        try {
          body(*comm);
        } catch (const Error& error) {
          comm->report_failure(error);
          throw;
        }
        comm->leave();
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::vector<RecordingObserver> train_ranks(const RunSpec& spec, const Ranks& ranks, int64_t threads_per_rank,
                                           const std::function<int(int rank)>& stop_signal,
                                           const std::function<void(const StepMetrics&)>& after_step) {
  std::vector<RecordingObserver> observers(static_cast<size_t>(ranks.world_size()));
  observers[0].after_step = after_step;
  run_ranks(ranks, [&](Communicator& comm) {
    const int rank = comm.world().rank;
    ThreadPool pool(threads_per_rank);
    Trainer trainer(spec, pool, observers[static_cast<size_t>(rank)], comm);
    trainer.run([&] { return stop_signal ? stop_signal(rank) : 0; });
  });
  return observers;
}

void expect_close_weights(const std::filesystem::path& found, const std::filesystem::path& expected) {
  const auto found_weights = read_tensors(found);
  const auto expected_weights = read_tensors(expected);
  ASSERT_EQ(found_weights.size(), expected_weights.size());
  for (const auto& [name, values] : expected_weights) {
    EXPECT_LT(relative_error(found_weights.at(name), values), 2e-5) << name;
  }
}

void expect_same_numbers(const RecordingObserver& found, const RecordingObserver& expected) {
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < found.steps.size(); ++i) {
    EXPECT_NEAR(found.steps[i].loss, expected.steps[i].loss, 2e-6 * expected.steps[i].loss)
        << "step " << i + 1;
    EXPECT_NEAR(found.steps[i].grad_norm, expected.steps[i].grad_norm, 1e-5 * expected.steps[i].grad_norm)
        << "step " << i + 1;
    EXPECT_EQ(found.steps[i].num_tokens, expected.steps[i].num_tokens);
    EXPECT_EQ(found.steps[i].num_target_tokens, expected.steps[i].num_target_tokens);
  }
}

}  // namespace tessera
