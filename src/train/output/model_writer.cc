#include "train/output/model_writer.h"

#include <exception>
#include <utility>

#include "base/error.h"
#include "comm/first_failure.h"
#include "weights/shared_export.h"

namespace tessera {
namespace {

const OpLabel kModelLabel = {"written model"};

}  // namespace

ModelWriter::ModelWriter(Communicator& comm, const TrainableModel& model, StoreState& state,
                         ExportOptions options, bool output_is_shared)
    : comm_(comm),
      model_(model),
      state_(state),
      options_(std::move(options)),
      output_is_shared_(output_is_shared) {}

void ModelWriter::write(OutputFolder* output, const std::filesystem::path& output_dir,
                        const std::function<void()>& after_export) {
  const PatientScope patience(comm_);
  if (!output_is_shared_) {
    hand_over_to_first_rank(output, after_export);
  } else if (output != nullptr) {
    const bool is_single = comm_.world().is_single();
    output->replace_model([&](const std::filesystem::path& folder) {
      is_single ? export_whole(folder) : export_parts(folder);
    });
    after_export();
  } else {
    export_parts(OutputFolder::unfinished_model(output_dir));
  }
  comm_.barrier(kModelLabel);
}

void ModelWriter::export_whole(const std::filesystem::path& folder) {
  handed_over_ = true;
  state_.export_masters([&](const WeightSource& source) {
    export_model_folder(folder, model_.config(), model_.layout(), source, options_);
  });
}

void ModelWriter::export_parts(const std::filesystem::path& folder) {
  const bool is_root = comm_.world().rank == 0;
  SharedExport files(folder, model_.config(), model_.layout(), options_);
  uint64_t number = 0;
  const auto all_do = [this](const auto& action) {
    if (const auto told = first_error(comm_, outside_error(action), kModelLabel)) {
      fail(told->code, "{}", told->message);
    }
  };
  all_do([&] {
    if (is_root) number = files.create();
  });
  number = comm_.broadcast(number, 0, kModelLabel);
  all_do([&] {
    files.write(number, state_.owned(), [this](int64_t begin, std::span<float> values) {
      state_.read(StateKind::kMaster, begin, values);
    });
  });
  if (is_root) files.commit();
}

void ModelWriter::hand_over_to_first_rank(OutputFolder* output, const std::function<void()>& after_export) {
  std::exception_ptr failure;
  handed_over_ = false;
  try {
    if (output != nullptr) {
      output->replace_model([this](const std::filesystem::path& folder) { export_whole(folder); });
      after_export();
    }
  } catch (...) {
    failure = std::current_exception();
  }
  // The others do their part even if rank 0 did not get that far.
  if (!handed_over_ && !comm_.failures().failed()) state_.export_masters([](const WeightSource&) {});
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tessera
